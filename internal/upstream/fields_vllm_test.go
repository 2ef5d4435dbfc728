package upstream

import (
	"encoding/json"
	"os"
	"testing"
)

// vllmSchema reads the names of an engine's own request schema.
func vllmSchema(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/vllm/0.32.0/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Name, Type string }
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 50 {
		t.Fatalf("%s has only %d fields: not the engine's schema", file, len(rows))
	}
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.Name
	}
	return names
}

func isReserved(name string) bool {
	for _, r := range reserved {
		if r.name == name {
			return true
		}
	}
	return false
}

// Each field of the engine's schema is judged, for each of its dialects (G-1).
func TestVLLMSchemaIsJudged(t *testing.T) {
	judged := func(d Dialect, e Endpoint, name string) bool {
		return lookup(d, e, []byte(name)) != nil || isReserved(name)
	}
	for _, d := range []Dialect{VLLM, VLLMNixl, VLLMMooncake} {
		for e, file := range map[Endpoint]string{Chat: "fields-chat.json", Completions: "fields-completions.json"} {
			for _, name := range vllmSchema(t, file) {
				if !judged(d, e, name) {
					t.Errorf("%v %s: the engine knows %q, which has no row and is not reserved", d, e.Path(), name)
				}
			}
			if judged(d, e, "a_field_of_tomorrow") {
				t.Errorf("%v %s: a name that nobody knows counts as judged", d, e.Path())
			}
		}
	}
}

// What decides about hand-off, identity, cache, placement, another prompt or another
// engine setting is never the client's own bytes.
func TestVLLMControlIsOutOfReach(t *testing.T) {
	control := []string{
		"kv_transfer_params", "ec_transfer_params", "vllm_xargs", "cache_salt", "request_id", "session_id", "chat_template",
		"prompt_embeds", "prompt_token_ids", "media_io_kwargs", "mm_processor_kwargs", "truncate_prompt_tokens", "documents",
		"watermarking",
	}
	for _, d := range []Dialect{VLLM, VLLMNixl, VLLMMooncake} {
		for _, e := range []Endpoint{Chat, Completions} {
			for _, name := range control {
				f := lookup(d, e, []byte(name))
				if f == nil || f.mode == never {
					continue
				}
				t.Errorf("%v %s: %q has mode %d", d, e.Path(), name, f.mode)
			}
			for _, name := range []string{"model", "max_tokens", "n", "priority", "stream"} {
				if f := lookup(d, e, []byte(name)); f == nil || f.mode != mapped {
					t.Errorf("%v %s: %q is not read and written by the gateway", d, e.Path(), name)
				}
			}
		}
	}
}

// Prefill generates one token and must end by its length: what ends an answer, or asks for
// more than one token, is decode's alone.
func TestVLLMPrefillEndsByLength(t *testing.T) {
	for _, name := range []string{"stop", "stop_token_ids", "min_tokens", "ignore_eos", "thinking_token_budget"} {
		if f := lookup(VLLMMooncake, Chat, []byte(name)); f == nil || f.leg != decodeLeg {
			t.Errorf("%q goes to prefill", name)
		}
	}
	// What the prompt is made of must be the same for both.
	for _, name := range []string{"tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt",
		"continue_final_message", "add_special_tokens"} {
		if f := lookup(VLLMMooncake, Chat, []byte(name)); f == nil || f.leg != eitherLeg {
			t.Errorf("%q does not go to both legs", name)
		}
	}
}
