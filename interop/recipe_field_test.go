package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// What is planted is found in no request by chance.
const (
	plantedValue  = "planted-9b1f"
	plantedNumber = "911911911"
)

// internalFields are those of recipe S2: with which routers and engines steer each other.
func internalFields() []string {
	return []string{
		`"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"planted-9b1f"}`, `"kv\u005ftransfer_params":{"transfer_id":"planted-9b1f"}`,
		`"ec_transfer_params":{"a":"planted-9b1f"}`, `"bootstrap_room":911911911`, `"bootstrap_host":"planted-9b1f"`, `"bootstrap_port":911911911`,
		`"bootstrap_pair_key":"planted-9b1f"`, `"disaggregated_params":{"a":"planted-9b1f"}`, `"transfer_id":"planted-9b1f"`,
		`"remote_bootstrap_addr":"planted-9b1f"`, `"remote_engine_id":"planted-9b1f"`, `"id_slot":0`, `"slot_id":0`, `"rid":"planted-9b1f"`,
		`"\u0072id":"planted-9b1f"`, `"request_id":"planted-9b1f"`, `"session_id":"planted-9b1f"`, `"session_params":{"id":"planted-9b1f"}`,
		`"conversation":"planted-9b1f"`, `"previous_response_id":"planted-9b1f"`, `"cache_salt":"planted-9b1f"`, `"extra_key":"planted-9b1f"`,
		`"cache_prompt":true`, `"n_cache_reuse":911911911`, `"mm_hashes":["planted-9b1f"]`, `"mm_payload":"planted-9b1f"`, `"uuid":"planted-9b1f"`,
		`"routed_dp_rank":911911911`, `"data_parallel_rank":911911911`, `"disagg_prefill_dp_rank":911911911`, `"priority":"planted-9b1f"`,
		`"lora_path":"planted-9b1f"`, `"vllm_xargs":{"kv_transfer_params":"planted-9b1f"}`, `"extra_body":{"rid":"planted-9b1f"}`,
		`"extra_args":{"rid":"planted-9b1f"}`, `"nvext":{"a":"planted-9b1f"}`, `"input_ids":[911911911]`, `"prompt_embeds":"planted-9b1f"`,
		`"custom_logit_processor":"planted-9b1f"`, `"chat_template":"planted-9b1f"`, `"verbose":true`, `"a_field_of_tomorrow":"planted-9b1f"`,
	}
}

// internalHeaders are the headers of the same kind. Those below are refused.
func internalHeaders() []string {
	return []string{
		"X-Prefiller-Host-Port", "X-Kv-Cache-Source-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Data-Parallel-Rank",
		"X-Override-Bootstrap-Room", "X-Override-Rid", "X-Override-Priority", "X-Sglang-Rid", "X-Smg-Routing-Key", "X-Body-Priority",
		"X-Tenant-Id", "X-Llm-D-Inference-Fairness-Id", "X-Bulkhead-Pass", "X-Bulkhead-Domain", "X-Conversation-Id",
	}
}

// harmlessHeaders have a meaning elsewhere; they are taken, and go no further.
func harmlessHeaders() []string {
	return []string{"X-Request-Id", "X-Correlation-Id", "Traceparent", "X-Session-Id", "X-Priority", "Cookie", "X-Forwarded-For", "Forwarded", "X-Api-Key-2", "X-Salt"}
}

// planted says where a node was sent what was planted.
func (s *stage) planted() string {
	s.t.Helper()
	for _, n := range s.nodes {
		for _, one := range n.Seen() {
			if text := fmt.Sprint(one.Path, one.Header) + string(one.Body); strings.Contains(text, plantedValue) || strings.Contains(text, plantedNumber) {
				return n.name + " " + one.Path
			}
		}
	}
	return ""
}

// TestInternalFromOutside is recipe S2, in every dialect.
func TestInternalFromOutside(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			for _, field := range internalFields() {
				for _, path := range []string{chatPath, completionPath} {
					a := s.send(s.request(0, path, body(0, path, ","+field)))
					if e := s.event(); a.status != http.StatusBadRequest || e.Attempts != 0 || strings.Contains(a.body, plantedValue) {
						t.Errorf("%s: %d %s", field, a.status, a.body)
					}
				}
			}
			for _, name := range internalHeaders() {
				r := s.request(0, chatPath, body(0, chatPath, ""))
				r.Header.Set(name, plantedValue)
				if a, e := s.send(r), s.event(); a.status != http.StatusBadRequest || a.code() != "reserved_header" || e.Attempts != 0 {
					t.Errorf("%s: %d %s", name, a.status, a.body)
				}
			}
			for _, n := range s.nodes {
				if got := s.counts(n); got != 0 {
					t.Errorf("%s was sent %d completions", n.name, got)
				}
			}
			for _, name := range harmlessHeaders() {
				r := s.request(0, chatPath, body(0, chatPath, `,"user":"`+plantedValue+`","metadata":{"a":"`+plantedValue+`"}`))
				r.Header.Set(name, plantedValue)
				if a, e := s.send(r), s.event(); a.status != http.StatusOK || e.Verdict != gw.Served {
					t.Errorf("%s: %d %s", name, a.status, a.body)
				}
			}
			if at := s.planted(); at != "" {
				t.Errorf("what was planted has arrived at %s", at)
			}
			s.members()
			// The control: what a prompt holds does arrive, and is found there.
			s.send(s.request(0, completionPath, `{"model":"m","prompt":"`+plantedValue+`"}`))
			s.event()
			if s.planted() == "" {
				t.Error("control: nothing of a prompt has arrived")
			}
		})
	}
}

// members holds that decode is only ever sent to the prefill of its own place.
func (s *stage) members() {
	s.t.Helper()
	for _, one := range s.decode.got(s.t) {
		switch s.kind.dialect {
		case upstream.SGLangPD:
			if one.text("bootstrap_host") != s.prefill.name || string(one.fields["bootstrap_port"]) != "8998" {
				s.t.Errorf("decode was sent to %s", one.fields["bootstrap_host"])
			}
		case upstream.VLLMNixl, upstream.VLLMMooncake:
			var kv struct {
				Engine    string `json:"remote_engine_id"`
				Bootstrap string `json:"remote_bootstrap_addr"`
			}
			if err := json.Unmarshal(one.fields["kv_transfer_params"], &kv); err != nil || kv.Engine != "engine-0" ||
				s.kind.dialect == upstream.VLLMMooncake && kv.Bootstrap != s.prefill.srv.URL {
				s.t.Errorf("decode was sent to %s", one.fields["kv_transfer_params"])
			}
		}
	}
}

// TestToolParameter: names inside a tool's own schema are its caller's, whatever they
// are, and arrive as they are.
func TestToolParameter(t *testing.T) {
	t.Parallel()
	const tools = `[{"type":"function","function":{"name":"order","parameters":{"type":"object","properties":{` +
		`"priority":{"type":"string"},"rid":{"type":"string"},"cache_salt":{"type":"string"},"kv_transfer_params":{"type":"object"}},"required":["priority"]}}}]`
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			for _, members := range []string{"", `,"stream":true`} {
				a := s.chat(`,"tools":` + tools + members)
				if e := s.event(); a.status != http.StatusOK || e.Verdict != gw.Served {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
			for _, n := range s.nodes {
				for _, one := range n.got(t) {
					if string(one.fields["tools"]) != tools {
						t.Errorf("%s was sent the tools %s", n.name, one.fields["tools"])
					}
				}
			}
			// The control: the same name at the top, where the engine reads it, is not taken.
			if a := s.chat(`,"priority":"high"`); a.status != http.StatusBadRequest || a.param() != "priority" {
				t.Errorf("control: %d %s", a.status, a.body)
			}
			s.event()
		})
	}
}

// schemas are the files that list what the engine of a dialect reads at a path.
func schemas(d upstream.Dialect, path string) []string {
	file := "fields-chat.json"
	if path == completionPath {
		file = "fields-completions.json"
	}
	switch d {
	case upstream.SGLang, upstream.SGLangPD:
		return []string{"sglang/0.5.19/" + file, "sglang/0.5.20/" + file}
	case upstream.VLLM, upstream.VLLMNixl, upstream.VLLMMooncake:
		return []string{"vllm/0.32.0/" + file}
	case upstream.LlamaCPP:
		return []string{"llamacpp/fields.json"}
	}
	return nil
}

// fieldsOf are the names that an engine reads at a path, over all recorded versions.
func fieldsOf(t *testing.T, d upstream.Dialect, path string) []string {
	t.Helper()
	names := map[string]bool{}
	for _, file := range schemas(d, path) {
		data, err := os.ReadFile(filepath.Join("..", "internal", "upstream", "testdata", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		var rows []struct {
			Name      string   `json:"name"`
			Endpoints []string `json:"endpoints"`
		}
		if err := json.Unmarshal(data, &rows); err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if len(r.Endpoints) == 0 || slices.Contains(r.Endpoints, map[string]string{chatPath: "chat", completionPath: "completions"}[path]) {
				names[r.Name] = true
			}
		}
	}
	for _, given := range []string{"model", "messages", "prompt"} {
		delete(names, given) // each request has them
	}
	return slices.Sorted(maps.Keys(names))
}

// fieldValues are tried one after the other for a field, until one is taken.
func fieldValues() []string {
	return []string{`0.25`, `7`, `true`, `"low"`, `"a b"`, `[7]`, `["a b"]`, `{"type":"json_object"}`, `{"7":1}`, `{"enable_thinking":true}`,
		`{"regex":"a"}`, `[{"type":"function","function":{"name":"f"}}]`, `"left"`, `"tensors"`, `"deepseek"`, `{"effort":"low"}`, `"query"`, `false`, `1`, `0`}
}

// ours says whether a field is one that the gateway writes by itself.
func ours(name string) bool {
	return slices.Contains([]string{"rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "priority", "kv_transfer_params", "cache_prompt",
		"max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "seed", "min_tokens", "ignore_eos", "repeat_penalty", "safety_identifier"}, name)
}

// controls says whether a field is one of those by which no client may command an engine.
func controls(name string) bool {
	return slices.Contains([]string{"rid", "request_id", "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "extra_key", "priority",
		"kv_transfer_params", "cache_prompt", "id_slot", "data_parallel_rank", "routed_dp_rank", "lora_path", "session_id"}, name)
}

// TestEveryField asks with every field that the engine's own schema has, one request each
// until a value is taken: what is taken arrives with the client's value, or is told to be
// dropped, or is what the gateway writes itself; all else is 400, names the field, and
// nothing arrives.
func TestEveryField(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		if schemas(k.dialect, chatPath) == nil {
			continue // nobody publishes one
		}
		for _, path := range []string{chatPath, completionPath} {
			t.Run(k.dialect.String()+path, func(t *testing.T) {
				t.Parallel()
				s := set(t, k, plan{})
				count := map[string]int{}
				for _, name := range append(fieldsOf(t, k.dialect, path), "a_field_of_tomorrow") {
					count[s.field(path, name)]++
				}
				t.Logf("%v", count)
				if count["arrives"] < 15 || count["refused"] < 10 || count["ours"] < 3 || count["dropped"] < 1 {
					t.Errorf("%v: the test tells nothing", count)
				}
			})
		}
	}
}

// field tries the values for one field and says what becomes of it.
func (s *stage) field(path, name string) string {
	s.t.Helper()
	for _, value := range fieldValues() {
		for _, n := range s.nodes {
			n.forget()
		}
		a := s.send(s.request(0, path, body(0, path, `,"`+name+`":`+value)))
		e := s.event()
		if a.status != http.StatusOK {
			s.refusedField(name, value, a, e)
			continue
		}
		where, arrived := s.arrival(name, value)
		dropped := slices.Contains(strings.Split(a.header.Get("X-Bulkhead-Dropped"), ", "), name)
		switch {
		case name == "a_field_of_tomorrow":
			s.t.Errorf("%s = %s is taken", name, value)
		case arrived && controls(name):
			s.t.Errorf("%s = %s has arrived", name, value)
		case arrived && dropped:
			s.t.Errorf("%s = %s is said to be dropped and has arrived", name, value)
		case ours(name):
			return "ours"
		case dropped:
			return "dropped"
		case arrived:
			return "arrives"
		case !where:
			return "off" // the value that means "not wanted", where there is nothing to be had
		default:
			s.t.Errorf("%s = %s arrives with another value", name, value)
		}
		return "wrong"
	}
	return "refused"
}

// arrival says whether the node that answers was sent the field at all, and with the
// client's value.
func (s *stage) arrival(name, value string) (there, same bool) {
	s.t.Helper()
	all := s.decode.got(s.t)
	if len(all) == 0 {
		s.t.Fatalf("%s = %s: decode was sent nothing", name, value)
	}
	raw, there := all[len(all)-1].fields[name]
	return there, bytes.Equal(raw, []byte(value))
}

// refusedField holds a refusal: it names the field, and no node was sent anything.
func (s *stage) refusedField(name, value string, a reply, e gw.RequestEvent) {
	s.t.Helper()
	top, _, _ := strings.Cut(a.param(), ".")
	top, _, _ = strings.Cut(top, "[")
	if a.status != http.StatusBadRequest || top != name || e.Attempts != 0 {
		s.t.Errorf("%s = %s: %d %s", name, value, a.status, a.body)
	}
	for _, n := range s.nodes {
		for _, one := range n.Seen() {
			if one.Method == http.MethodPost {
				s.t.Errorf("%s = %s is refused, and %s was sent %s", name, value, n.name, one.Path)
			}
		}
	}
}
