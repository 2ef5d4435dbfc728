package upstream

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

// schemas are the files that list what the engines of a dialect take at an endpoint.
func schemas(d Dialect, e Endpoint) []string {
	file := "fields-chat.json"
	if e == Completions {
		file = "fields-completions.json"
	}
	switch d {
	case SGLang, SGLangPD:
		return []string{"sglang/0.5.19/" + file, "sglang/0.5.20/" + file}
	case VLLM, VLLMNixl, VLLMMooncake:
		return []string{"vllm/0.32.0/" + file}
	case LlamaCPP:
		return []string{"llamacpp/fields.json"}
	default:
		return nil
	}
}

// known are the names of a schema file for an endpoint.
func known(t *testing.T, file string, e Endpoint) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", filepath.FromSlash(file)))
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
	var names []string
	for _, r := range rows {
		if len(r.Endpoints) == 0 || strings.Contains(strings.Join(r.Endpoints, " "), strings.TrimPrefix(e.Path(), "/v1/")[:4]) {
			names = append(names, r.Name)
		}
	}
	if len(names) < 50 {
		t.Fatalf("%s has only %d names", file, len(names))
	}
	return names
}

// values are tried in turn for a field of which only the name is known. The first is
// found in no body by chance.
func values() []string {
	return []string{`true`, `0.25`, `2`, `"low"`, `"text"`, `"a"`, `[7]`, `["a"]`, `{"type":"json_object"}`, `{"7":1}`,
		`{"effort":"low"}`, `{"enable_thinking":true}`, `{"regex":"a"}`, `{"min_count":3}`, `[{"type":"function","function":{"name":"f"}}]`,
		`"deepseek"`, `"query"`, `1`}
}

// TestEveryFieldOfTheSchema sets every field that an engine knows, one at a time: it
// passes as it is, or it is taken and does not arrive, or it is refused by its name.
func TestEveryFieldOfTheSchema(t *testing.T) {
	for _, d := range engines() {
		for _, e := range []Endpoint{Chat, Completions} {
			for _, file := range schemas(d, e) {
				passed, refused := 0, 0
				for _, name := range known(t, file, e) {
					if name == "model" || name == "messages" || name == "prompt" {
						continue
					}
					if everyValue(t, d, e, name) {
						passed++
					} else {
						refused++
					}
				}
				if passed < 25 || refused < 15 {
					t.Errorf("%v %s: %d fields are taken and %d refused: the test tells nothing", d, file, passed, refused)
				}
			}
		}
	}
}

// everyValue tries the values for a field and says whether one of them was taken.
func everyValue(t *testing.T, d Dialect, e Endpoint, name string) bool {
	t.Helper()
	base := message(`{"role":"user","content":"a"}`)
	if e == Completions {
		base = `{"model":"m","prompt":"a"}`
	}
	f := lookup(d, e, []byte(name))
	taken := false
	for _, v := range values() {
		r, err := take(d, e, strings.TrimSuffix(base, "}")+`,"`+name+`":`+v+`}`)
		if err != nil {
			top, _, _ := strings.Cut(err.Param, ".")
			top, _, _ = strings.Cut(top, "[")
			if err.Status != 400 || top != name || err.Code == fault.UnknownField && err.Param == name {
				t.Errorf("%v: %s = %s: %v (%s)", d, name, v, err, err.Param)
			}
			continue
		}
		taken = true
		if f == nil || f.mode == never || f.mode == grant {
			t.Errorf("%v: %s = %s is taken", d, name, v)
			continue
		}
		arrives(t, d, r, f, v)
	}
	return taken
}

// arrives checks that a field that passes stands in the legs as the client wrote it, and
// that another one does not, unless the gateway writes it.
func arrives(t *testing.T, d Dialect, r *Request, f *field, value string) {
	t.Helper()
	for _, leg := range goldenLegs(d, r) {
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(leg.Body), &got); err != nil {
			t.Fatalf("%v: %s: %v", d, leg.Body, err)
		}
		raw, there := got[f.name]
		ours := f.name == "min_tokens" || f.name == "ignore_eos"
		switch {
		case f.mode == pass && (leg.Role != PrefillRole || f.leg != decodeLeg):
			if string(raw) != value {
				t.Errorf("%v %s: %s = %s arrives as %s", d, leg.Role, f.name, value, raw)
			}
		case there && string(raw) == value && controls(f.name) == "" && !ours && f.to == (rewrite{}):
			t.Errorf("%v %s: %s = %s arrives", d, leg.Role, f.name, value)
		}
	}
}

// controls is the value that the gateway gives a field, or begins it with; empty if it
// writes none.
func controls(name string) string {
	switch name {
	case "model", "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "priority", "kv_transfer_params",
		"cache_prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "safety_identifier":
		return name
	}
	return ""
}

// TestAllFieldsAtOnce sets all fields that an engine knows in one body, and takes out what
// is refused until it passes: what arrives then is on the list.
func TestAllFieldsAtOnce(t *testing.T) {
	for _, d := range engines() {
		for _, file := range schemas(d, Chat) {
			members := map[string]string{}
			for _, name := range known(t, file, Chat) {
				if name != "model" && name != "messages" {
					members[name] = aValue(d, name)
				}
			}
			all := len(members)
			for {
				body := `{"messages":[{"role":"user","content":"a"}],"model":"m"`
				for name, v := range members {
					body += `,"` + name + `":` + v
				}
				r, err := take(d, Chat, body+"}")
				if err == nil {
					if all-len(members) < 20 || len(members) < 20 {
						t.Errorf("%v: %d of %d fields pass together", d, len(members), all)
					}
					listed(t, d, r, members)
					break
				}
				top, _, _ := strings.Cut(err.Param, ".")
				if _, there := members[top]; !there || err.Status != 400 {
					t.Fatalf("%v: refused for what is not there: %v (%s)", d, err, err.Param)
				}
				delete(members, top)
			}
		}
	}
}

// aValue is the first value that a field takes alone, or true.
func aValue(d Dialect, name string) string {
	for _, v := range values() {
		if _, err := take(d, Chat, with(`"`+name+`":`+v)); err == nil {
			return v
		}
	}
	return "true"
}

// listed checks that only listed fields and the gateway's own are in the legs.
func listed(t *testing.T, d Dialect, r *Request, members map[string]string) {
	t.Helper()
	for _, leg := range goldenLegs(d, r) {
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(leg.Body), &got); err != nil {
			t.Fatal(err)
		}
		for name := range got {
			f := lookup(d, Chat, []byte(name))
			if controls(name) == "" && (f == nil || f.mode != pass) {
				t.Errorf("%v: %s arrives with %s (client's %q)", d, name, got[name], members[name])
			}
		}
	}
}

// rows are the rows of a dialect, gatewayFields included.
func rows(d Dialect) []*field {
	var all []*field
	for _, list := range [][]field{gatewayFields[:], table(d)} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

// TestTables holds what the code takes for granted of every table.
func TestTables(t *testing.T) {
	for _, d := range Dialects() {
		for _, e := range []Endpoint{Chat, Completions} {
			kinds := map[kind]string{}
			for _, row := range rows(d) {
				f := *row
				if f.in&e == 0 || f.on != 0 && f.on&sole(d) == 0 {
					continue
				}
				if got := lookup(d, e, []byte(f.name)); got != row {
					t.Errorf("%v: %s has two rows", d, f.name)
				}
				if f.kind <= kindLogprobs && f.kind != kindMax && f.mode != never && f.mode != off {
					if other := kinds[f.kind]; other != "" {
						t.Errorf("%v: %s and %s are read as one", d, f.name, other)
					}
					kinds[f.kind] = f.name
				}
				if own := controls(f.name); own != "" && (f.mode == pass || f.mode == grant) {
					t.Errorf("%v: %s passes and is written by the gateway", d, f.name)
				}
				if f.mode == never && f.reason == (fault.Arg{}) {
					t.Errorf("%v: %s is refused without a reason", d, f.name)
				}
				if f.mode == off != (f.kind >= kindOne) && f.mode != never {
					t.Errorf("%v: %s has a mode that does not go with its kind", d, f.name)
				}
				if f.mode == mapped && f.to == (rewrite{}) && f.kind > kindPriority {
					t.Errorf("%v: %s is mapped to nothing", d, f.name)
				}
				if (f.kind == kindTokens || f.kind == kindTexts) && f.high < 1 {
					t.Errorf("%v: %s is a list of no length", d, f.name)
				}
			}
			for k, name := range map[kind]string{kindModel: "model", kindStream: "stream", kindStreamOptions: "stream_options", kindSeed: "seed", kindStop: "stop"} {
				if kinds[k] != name {
					t.Errorf("%v: the table lacks %s", d, name)
				}
			}
		}
	}
}

func TestGrantable(t *testing.T) {
	for _, tc := range []struct {
		d    Dialect
		name string
		want bool
	}{
		{VLLM, "echo", true}, {VLLMNixl, "echo", false}, {VLLM, "prompt_token_ids", true}, {Bulkhead, "prompt_token_ids", false},
		{VLLM, "kv_transfer_params", false}, {VLLM, "temperature", false}, {OpenAI, "service_tier", true}, {VLLM, "zzz", false},
	} {
		if got := Grantable(tc.d, tc.name); got != tc.want {
			t.Errorf("%v %s: %v", tc.d, tc.name, got)
		}
	}
}
