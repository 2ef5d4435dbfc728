package upstream

import (
	"encoding/json"
	"os"
	"testing"
)

// sglangSchema reads the names of the engine's own request schema.
func sglangSchema(t *testing.T, version, file string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/sglang/" + version + "/fields-" + file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Name, Type string }
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 50 {
		t.Fatalf("%s %s has only %d fields: not the engine's schema", version, file, len(rows))
	}
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.Name
	}
	return names
}

// TestSGLangSchemaIsJudged fails on a field of the engine that nobody has judged (G-1),
// and on a row of an inspected name that the engine does not have in any version.
func TestSGLangSchemaIsJudged(t *testing.T) {
	known := map[Endpoint]map[string]bool{Chat: {}, Completions: {}}
	for _, version := range []string{"0.5.19", "0.5.20"} {
		for e, file := range map[Endpoint]string{Chat: "chat", Completions: "completions"} {
			for _, name := range sglangSchema(t, version, file) {
				known[e][name] = true
				for _, d := range []Dialect{SGLang, SGLangPD} {
					if lookup(d, e, []byte(name)) == nil && !isReserved(name) {
						t.Errorf("%s: %s of %s has no row and is not reserved (%s)", d, name, e.Path(), version)
					}
				}
			}
		}
	}
	// The control: a name that is on no list is not found.
	if lookup(SGLang, Chat, []byte("a_field_of_tomorrow")) != nil || isReserved("a_field_of_tomorrow") {
		t.Error("a field that nobody knows counts as judged")
	}
	for _, f := range rows(SGLang) {
		if f.mode != pass && f.mode != grant {
			continue
		}
		for _, e := range []Endpoint{Chat, Completions} {
			if f.in&e != 0 && !known[e][f.name] {
				t.Errorf("%s is passed to %s, where no recorded version knows it: it would be ignored in silence", f.name, e.Path())
			}
		}
	}
}

// TestSGLangNativeControl holds what only the native path has and what is control there
// too: whatever is on the reserved set stays on it.
func TestSGLangNativeControl(t *testing.T) {
	native := map[string]bool{}
	for _, name := range sglangSchema(t, "0.5.20", "generate") {
		native[name] = true
	}
	for _, name := range []string{"rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "routed_dp_rank",
		"data_parallel_rank", "disagg_prefill_dp_rank", "cache_salt", "extra_key", "session_id", "session_params", "conversation_id",
		"lora_path", "lora_id", "input_ids", "input_embeds", "custom_logit_processor", "return_hidden_states", "background",
		"token_ids_logprob", "log_metrics", "no_logs", "return_bytes", "priority"} {
		if !native[name] {
			t.Errorf("%s is not a field of the engine any more", name)
		}
		if !isReserved(name) {
			t.Errorf("%s is not reserved", name)
		}
	}
}

// TestSGLangPrefillLeg holds that what prefill would refuse beside its one token, or end
// by, does not reach it.
func TestSGLangPrefillLeg(t *testing.T) {
	for _, name := range []string{"stop", "stop_token_ids", "stop_regex", "min_tokens", "ignore_eos", "no_stop_trim"} {
		if f := lookup(SGLangPD, Chat, []byte(name)); f == nil || f.leg != decodeLeg {
			t.Errorf("%s reaches prefill", name)
		}
	}
	for _, name := range []string{"temperature", "logit_bias", "regex", "response_format", "logprobs", "reasoning"} {
		if f := lookup(SGLangPD, Chat, []byte(name)); f == nil || f.leg != eitherLeg {
			t.Errorf("%s does not reach prefill, which draws the first token", name)
		}
	}
}
