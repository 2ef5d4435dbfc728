package upstream

import (
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

// message is a chat body of one message.
func message(m string) string { return `{"model":"m","messages":[` + m + `]}` }

func completion(members string) string { return `{"model":"m","prompt":"a",` + members + `}` }

// engines are all dialects but our own workers'.
func engines() []Dialect { return Dialects()[1:] }

func TestJudgeTakes(t *testing.T) {
	image := func(part string) string { return message(`{"role":"user","content":[` + part + `]}`) }
	for _, tc := range []struct {
		name  string
		p     Policy
		e     Endpoint
		body  string
		check func(r *Request) bool
	}{
		{"a tool with a parameter that is reserved elsewhere", Policy{Dialect: VLLM}, Chat,
			with(`"tools":[{"type":"function","function":{"name":"f","description":null,"strict":true,"parameters":{"properties":{"priority":{},"rid":{},"rid":{}}}}}]`),
			func(r *Request) bool { return r.Tools && r.Loose && r.Text > 100 }},
		{"no tools", Policy{Dialect: VLLM}, Chat, with(`"tools":[]`), func(r *Request) bool { return !r.Tools && !r.Loose && r.Text == 5 }},
		{"tool choice by name", Policy{Dialect: OpenAI}, Chat, with(`"tool_choice":{"type":"function","function":{"name":"f"}}`), nil},
		{"tool choice by word", Policy{Dialect: LlamaCPP}, Chat, with(`"tool_choice":"required"`), nil},
		{"how long the prompt may be cached", Policy{Dialect: LlamaCPP}, Chat, with(`"prompt_cache_retention":"24h"`),
			func(r *Request) bool { return strings.Join(r.Dropped, ",") == "prompt_cache_retention" }},
		{"functions", Policy{Dialect: OpenAI}, Chat, with(`"functions":[{"name":"f","parameters":{"rid":1}}],"function_call":{"name":"f"}`),
			func(r *Request) bool { return r.Tools }},
		{"a whole exchange with tools", Policy{Dialect: VLLM}, Chat,
			message(`{"role":"user","content":"a","name":"bob"},{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","index":0,"function":{"name":"f","arguments":{"rid":1}}}]},{"role":"tool","tool_call_id":"c","content":"b"}`),
			func(r *Request) bool { return r.Messages == 3 && r.Text > 2 && r.Loose }},
		{"content null beside calls", Policy{Dialect: LlamaCPP}, Chat,
			message(`{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`), nil},
		{"a picture inline", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"high"}}`),
			func(r *Request) bool { return r.Loose && r.Text == 0 }},
		{"a picture at an allowed host", Policy{Dialect: VLLM, Domains: []string{"img.example.org"}}, Chat,
			image(`{"type":"image_url","image_url":{"url":"https:\/\/img.example.org:443/a.png?x=1"}},{"type":"text","text":"what?"}`),
			func(r *Request) bool { return r.Text == 5 }},
		{"sound inline", Policy{Dialect: LlamaCPP}, Chat, image(`{"type":"input_audio","input_audio":{"data":"//uQxAAA","format":"mp3"}}`), nil},
		{"a file inline", Policy{Dialect: OpenAI}, Chat, image(`{"type":"file","file":{"file_data":"data:application/pdf;base64,AAAA","filename":"a.pdf"}}`), nil},
		{"n", Policy{Dialect: VLLM}, Chat, with(`"n":3`), func(r *Request) bool { return r.Sequences() == 3 && r.N == 3 && r.Prompts == 1 }},
		{"prompts", Policy{Dialect: VLLMNixl}, Completions, `{"model":"m","prompt":["ab","c"],"n":2}`,
			func(r *Request) bool {
				return r.Sequences() == 4 && r.Text == 3 && r.TextOf(0) == 2 && r.TextOf(1) == 2 && r.TextOf(2) == 1 && r.TextOf(3) == 1
			}},
		{"token ids", Policy{Dialect: VLLM, Grants: []string{"prompt_token_ids"}}, Completions, `{"model":"m","prompt":[1,2,3]}`,
			func(r *Request) bool { return r.Prompts == 1 && r.Tokens(0) == Count{3, true} && r.Text == 0 }},
		{"lists of token ids", Policy{Dialect: VLLM, Grants: []string{"prompt_token_ids"}}, Completions, `{"model":"m","prompt":[[1,2],[3]]}`,
			func(r *Request) bool { return r.Prompts == 2 && r.Tokens(0).N == 2 && r.Tokens(1).N == 1 }},
		{"echo by grant", Policy{Dialect: VLLM, Grants: []string{"echo"}}, Completions, completion(`"echo":true`), func(r *Request) bool { return r.Echo }},
		{"echo false without", Policy{Dialect: VLLM}, Completions, completion(`"echo":false`), func(r *Request) bool { return !r.Echo && len(r.Dropped) == 0 }},
		{"echo in shadow", Policy{Dialect: VLLM, Shadow: []string{"echo"}}, Completions, completion(`"echo":true`),
			func(r *Request) bool { return r.Echo && strings.Join(r.Shadowed, ",") == "echo" }},
		{"unknown in shadow", Policy{Dialect: VLLM, Shadow: []string{"*"}}, Chat, `{"model":"m","zzz":1,"chat_template_kwargs":{"foo":1},"messages":[{"role":"user","content":"a","weight":1}]}`,
			func(r *Request) bool {
				return strings.Join(r.Shadowed, ",") == "zzz,chat_template_kwargs.foo,messages.weight"
			}},
		{"priority and safety", Policy{Dialect: VLLM}, Chat, with(`"priority":7,"safety_identifier":"u\u0031"`),
			func(r *Request) bool { return r.Priority == Count{7, true} && r.SafetyID == "u1" }},
		{"log probabilities", Policy{Dialect: VLLM}, Chat, with(`"logprobs":true,"top_logprobs":5`), func(r *Request) bool { return r.Logprobs }},
		{"log probabilities of a completion", Policy{Dialect: VLLM}, Completions, completion(`"logprobs":5`), func(r *Request) bool { return r.Logprobs }},
		{"no log probabilities", Policy{Dialect: VLLM}, Chat, with(`"logprobs":false`), func(r *Request) bool { return !r.Logprobs }},
		{"usage on every chunk has no effect", Policy{Dialect: VLLM}, Chat, with(`"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`),
			func(r *Request) bool {
				return r.UsageChunk && strings.Join(r.Dropped, ",") == "stream_options.continuous_usage_stats"
			}},
		{"a grammar just short enough", Policy{Dialect: LlamaCPP, MaxSchema: 10}, Chat, with(`"grammar":"0123456789"`), nil},
		{"a schema", Policy{Dialect: OpenAI}, Chat, with(`"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"rid":1,"rid":2}}}`),
			func(r *Request) bool { return r.Loose }},
		{"json mode", Policy{Dialect: OpenAI}, Chat, with(`"response_format":{"type":"json_object"}`), func(r *Request) bool { return !r.Loose }},
		{"sampling that llama.cpp calls otherwise", Policy{Dialect: LlamaCPP}, Chat, with(`"repetition_penalty":1.2`),
			func(r *Request) bool { return strings.Join(r.Mapped, ",") == "repetition_penalty" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := takeUnder(tc.p, tc.e, tc.body)
			if err != nil {
				t.Fatalf("refused: %v (%s)", err, err.Param)
			}
			if tc.check != nil && !tc.check(r) {
				t.Errorf("read %+v", r)
			}
			for _, leg := range goldenLegs(tc.p.Dialect, r) {
				if ok, bad := valid([]byte(leg.Body)); !ok || bad != fine {
					t.Errorf("leg body is not JSON: %s", leg.Body)
				}
			}
		})
	}
}

func TestJudgeRefuses(t *testing.T) {
	image := func(part string) string { return message(`{"role":"user","content":[` + part + `]}`) }
	const part0 = "messages[0].content[0]"
	for _, tc := range []struct {
		name  string
		p     Policy
		e     Endpoint
		body  string
		code  fault.Code
		param string
	}{
		{"echo without a grant", Policy{Dialect: VLLM}, Completions, completion(`"echo":true`), fault.FieldNotGranted, "echo"},
		{"echo on a pair", Policy{Dialect: VLLMNixl, Grants: []string{"echo"}}, Completions, completion(`"echo":true`), fault.UnsupportedField, "echo"},
		{"token ids without a grant", Policy{Dialect: VLLM}, Completions, `{"model":"m","prompt":[1]}`, fault.FieldNotGranted, "prompt_token_ids"},
		{"token ids negative", Policy{Dialect: VLLM}, Completions, `{"model":"m","prompt":[-1]}`, fault.OutOfRange, "prompt"},
		{"mixed prompts", Policy{Dialect: LlamaCPP}, Completions, `{"model":"m","prompt":[1,"a"]}`, fault.WrongType, "prompt"},
		{"an object as prompt", Policy{Dialect: LlamaCPP}, Completions, `{"model":"m","prompt":{"prompt_string":"a"}}`, fault.WrongType, "prompt"},
		{"one of the prompts is empty", Policy{Dialect: VLLM}, Completions, `{"model":"m","prompt":["a",""]}`, fault.EmptyPrompt, "prompt"},
		{"too many sequences by n", Policy{Dialect: VLLM}, Chat, with(`"n":17`), fault.OutOfRange, "n"},
		{"too many sequences by both", Policy{Dialect: VLLM, MaxSequences: 3}, Completions, `{"model":"m","prompt":["a","b"],"n":2}`, fault.TooManyValues, "prompt"},
		{"n 0", Policy{Dialect: VLLM}, Chat, with(`"n":0`), fault.OutOfRange, "n"},

		{"slot", Policy{Dialect: LlamaCPP, Shadow: []string{"*"}}, Chat, with(`"id_slot":0`), fault.ReservedField, "id_slot"},
		{"cache", Policy{Dialect: LlamaCPP, Shadow: []string{"*"}}, Chat, with(`"cache_prompt":false`), fault.ReservedField, "cache_prompt"},
		{"the other name of a length", Policy{Dialect: LlamaCPP, Shadow: []string{"*"}}, Chat, with(`"n_predict":5`), fault.ReservedField, "n_predict"},
		{"hand-off", Policy{Dialect: VLLMNixl, Shadow: []string{"*", "kv_transfer_params"}, Grants: []string{"kv_transfer_params"}}, Chat, with(`"kv_transfer_params":{}`), fault.ReservedField, "kv_transfer_params"},
		{"what the gateway writes does not pass in shadow", Policy{Dialect: VLLM, Shadow: []string{"*"}}, Completions, completion(`"max_completion_tokens":5`), fault.UnknownField, "max_completion_tokens"},
		{"unknown in stream_options does not pass in shadow", Policy{Dialect: VLLM, Shadow: []string{"*"}}, Chat, with(`"stream_options":{"zzz":true}`), fault.UnknownField, "stream_options.zzz"},
		{"template variables", Policy{Dialect: LlamaCPP}, Chat, with(`"chat_template_kwargs":{"messages":[]}`), fault.UnknownField, "chat_template_kwargs.messages"},
		{"template variables that are no scalars", Policy{Dialect: LlamaCPP}, Chat, with(`"chat_template_kwargs":{"thinking":{}}`), fault.WrongType, "chat_template_kwargs.thinking"},
		{"template variables twice", Policy{Dialect: LlamaCPP}, Chat, with(`"chat_template_kwargs":{"thinking":true,"th\u0069nking":false}`), fault.RepeatedField, "chat_template_kwargs.thinking"},
		{"reserved in a tool", Policy{Dialect: VLLM}, Chat, with(`"tools":[{"type":"function","rid":"x","function":{"name":"f"}}]`), fault.ReservedField, "tools[0].rid"},
		{"reserved in a function", Policy{Dialect: VLLM}, Chat, with(`"tools":[{"type":"function","function":{"name":"f","cache_salt":1}}]`), fault.ReservedField, "tools[0].function.cache_salt"},
		{"a tool that is no function", Policy{Dialect: OpenAI}, Chat, with(`"tools":[{"type":"web_search"}]`), fault.WrongType, "tools[0].type"},
		{"a tool choice that would be ignored", Policy{Dialect: LlamaCPP}, Chat, with(`"tool_choice":{"type":"function","function":{"name":"f"}}`), fault.WrongType, "tool_choice"},
		{"a tool without a name", Policy{Dialect: OpenAI}, Chat, with(`"tools":[{"type":"function","function":{}}]`), fault.MissingField, "tools[0].function.name"},
		{"a tool twice the type", Policy{Dialect: OpenAI}, Chat, with(`"tools":[{"type":"function","type":"x"}]`), fault.RepeatedField, "tools[0].type"},
		{"reserved in a call", Policy{Dialect: VLLM}, Chat, message(`{"role":"assistant","content":"a","tool_calls":[{"id":"c","request_id":1}]}`), fault.ReservedField, "messages[0].tool_calls[0].request_id"},
		{"unknown in a call", Policy{Dialect: VLLM}, Chat, message(`{"role":"assistant","content":"a","tool_calls":[{"id":"c","function":{"name":"f","zzz":1}}]}`), fault.UnknownField, "messages[0].tool_calls[0].function.zzz"},
		{"unknown twice in shadow", Policy{Dialect: VLLM, Shadow: []string{"*"}}, Chat, message(`{"role":"user","content":"a","zzz":1,"zz\u007a":2}`), fault.RepeatedField, "messages[0].zzz"},
		{"unknown twice at top in shadow", Policy{Dialect: VLLM, Shadow: []string{"*"}}, Chat, with(`"zzz":1,"\u007azz":2`), fault.RepeatedField, "zzz"},
		{"a schema too long", Policy{Dialect: OpenAI, MaxSchema: 20}, Chat, with(`"response_format":{"type":"json_schema","json_schema":{"schema":{"a":"0123456789"}, "name":"x"}}`), "", ""},
		{"a schema longer", Policy{Dialect: OpenAI, MaxSchema: 17}, Chat, with(`"response_format":{"type":"json_schema","json_schema":{"schema":{"a":"0123456789"}, "name":"x"}}`), fault.ValueTooLong, "response_format.json_schema.schema"},
		{"a grammar too long", Policy{Dialect: LlamaCPP, MaxSchema: 10}, Chat, with(`"grammar":"01234567890"`), fault.ValueTooLong, "grammar"},
		{"a format that is not known", Policy{Dialect: OpenAI}, Chat, with(`"response_format":{"type":"xml"}`), fault.WrongType, "response_format.type"},
		{"a format without a type", Policy{Dialect: OpenAI}, Chat, with(`"response_format":{}`), fault.MissingField, "response_format.type"},
		{"two constraints, one mapped", Policy{Dialect: VLLM}, Chat, with(`"guided_json":{},"structured_outputs":{"regex":"a"}`), fault.ConflictingFields, "guided_json"},
		{"two mapped constraints", Policy{Dialect: VLLM}, Chat, with(`"guided_json":{},"guided_regex":"a"`), fault.ConflictingFields, "guided_json"},
		{"a mapped field and its new name", Policy{Dialect: LlamaCPP}, Chat, with(`"repeat_penalty":1.1,"repetition_penalty":1.1`), fault.ConflictingFields, "repetition_penalty"},
		{"a schema in a string that holds none", Policy{Dialect: OpenAI}, Chat, with(`"guided_json":"{} {}"`), fault.WrongType, "guided_json"},
		{"store", Policy{Dialect: OpenAI}, Chat, with(`"store":true`), fault.UnsupportedField, "store"},
		{"a price class without a grant", Policy{Dialect: OpenAI}, Chat, with(`"service_tier":"priority"`), fault.FieldNotGranted, "service_tier"},

		{"a picture elsewhere", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_url","image_url":{"url":"https://img.example.org/a"}}`), fault.URLNotAllowed, part0},
		{"a picture in a file", Policy{Dialect: VLLM, Domains: []string{"etc"}}, Chat, image(`{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}`), fault.URLNotAllowed, part0},
		{"a picture at a bare path", Policy{Dialect: SGLang}, Chat, image(`{"type":"image_url","image_url":{"url":"/etc/passwd"}}`), fault.URLNotAllowed, part0},
		{"a picture by escape", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_url","image_url":{"url":"\u0066ile:///etc/passwd"}}`), fault.URLNotAllowed, part0},
		{"a URL in place of sound", Policy{Dialect: LlamaCPP}, Chat, image(`{"type":"input_audio","input_audio":{"data":"http:\/\/h/a","format":"mp3"}}`), fault.URLNotAllowed, part0},
		{"a stored file", Policy{Dialect: OpenAI}, Chat, image(`{"type":"file","file":{"file_id":"f-1"}}`), fault.UnsupportedContent, part0},
		{"a cached picture", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_url","image_url":{"url":"data:,"},"uuid":"x"}`), fault.ReservedField, part0 + ".uuid"},
		{"a type and another content", Policy{Dialect: VLLM}, Chat, image(`{"type":"text","image_url":{"url":"data:,"}}`), fault.UnsupportedContent, part0},
		{"two contents in one part", Policy{Dialect: VLLM}, Chat, image(`{"type":"text","text":"a","image_url":{"url":"data:,"}}`), fault.UnsupportedContent, part0},
		{"a part of another kind", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_embeds","image_embeds":"x"}`), fault.UnsupportedContent, part0},
		{"video on llama.cpp", Policy{Dialect: LlamaCPP}, Chat, image(`{"type":"video_url","video_url":{"url":"data:,"}}`), fault.UnsupportedContent, part0},
		{"a picture twice the place", Policy{Dialect: VLLM}, Chat, image(`{"type":"image_url","image_url":{"url":"data:,","u\u0072l":"http://x"}}`), fault.RepeatedField, part0 + ".image_url.url"},
		{"role function", Policy{Dialect: VLLM}, Chat, message(`{"role":"function","content":"a"}`), fault.WrongType, "messages[0].role"},
		{"calls that are no list", Policy{Dialect: VLLM}, Chat, message(`{"role":"assistant","content":"a","tool_calls":{"a":1}}`), fault.WrongType, "messages[0].tool_calls"},
		{"a stored sound", Policy{Dialect: OpenAI}, Chat, message(`{"role":"assistant","content":"a","audio":{"id":"x"}}`), fault.UnsupportedField, "messages[0].audio"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := takeUnder(tc.p, tc.e, tc.body)
			if tc.code == "" { // the positive control of the line below it
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("taken: %+v", r)
			}
			if err.Code != tc.code || err.Param != tc.param {
				t.Errorf("got %s %q, want %s %q", err.Code, err.Param, tc.code, tc.param)
			}
			if err.Status != 400 {
				t.Errorf("status %d", err.Status)
			}
		})
	}
}

// TestReservedEverywhere sets every reserved field of no dialect's table at every place
// that is inspected, for every engine and with everything in shadow.
func TestReservedEverywhere(t *testing.T) {
	places := 0
	for _, d := range engines() {
		p := Policy{Dialect: d, Shadow: []string{"*"}}
		for _, n := range reserved {
			bodies := []struct{ body, param string }{
				{`{"model":"m","messages":[{"role":"user","content":"a","` + n.name + `":1}]}`, "messages[0]." + n.name},
				{`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","` + n.name + `":1}]}]}`, "messages[0].content[0]." + n.name},
				{with(`"stream_options":{"` + n.name + `":1}`), "stream_options." + n.name},
			}
			f := lookup(d, Chat, []byte(n.name))
			if f == nil || f.mode == never {
				bodies = append(bodies, struct{ body, param string }{with(`"` + n.name + `":1`), n.name})
			}
			for _, b := range bodies {
				places++
				if _, err := takeUnder(p, Chat, b.body); err == nil || err.Code != fault.ReservedField || err.Param != b.param {
					t.Errorf("%v: %s: %v", d, b.body, err)
				}
			}
		}
		if _, err := takeUnder(p, Chat, with(`"priority_":1`)); err != nil {
			t.Errorf("%v: a name that is not reserved is refused too: %v", d, err)
		}
	}
	if places < 1000 {
		t.Errorf("only %d places", places)
	}
}

func TestAllowedURL(t *testing.T) {
	domains := []string{"img.example.org", "img.example.org:8443", "[2001:db8::1]"}
	for url, want := range map[string]bool{
		"data:image/png;base64,AAAA":               true,
		"https://img.example.org/a.png":            true,
		"http://img.example.org":                   true,
		"https://img.example.org:443/a":            true,
		"https://img.example.org:8443/a":           true,
		"http://img.example.org:80?x":              true,
		"http://[2001:db8::1]/a":                   true,
		"https://img.example.org:80/a":             false,
		"https://img.example.org:9/a":              false,
		"https://IMG.example.org/a":                false,
		"https://img.example.org./a":               false,
		"https://img.example.org.evil.test/a":      false,
		"https://evil.test/img.example.org":        false,
		"https://img.example.org@evil.test/a":      false,
		"https://user:pw@img.example.org/a":        false,
		"https://evil.test#@img.example.org/":      false,
		`https://evil.test\@img.example.org/`:      false,
		"https://img.example.org%2f.evil.test/":    false,
		"https://img.example.org\t/a":              false,
		" https://img.example.org/a":               false,
		"HTTPS://img.example.org/a":                false,
		"https:/img.example.org/a":                 false,
		"https:///img.example.org/a":               false,
		"//img.example.org/a":                      false,
		"img.example.org/a":                        false,
		"file:///etc/passwd":                       false,
		"file://img.example.org/a":                 false,
		"ftp://img.example.org/a":                  false,
		"gopher://img.example.org/a":               false,
		"http://169.254.169.254/latest/meta-data/": false,
		"https://img.éxample.org/":                 false,
		"https://":                                 false,
		"":                                         false,
		"data:image/png;base64,AA AA":              false,
	} {
		if got := allowedURL(url, domains); got != want {
			t.Errorf("%q: %v", url, got)
		}
		if allowedURL(url, nil) && !strings.HasPrefix(url, "data:") {
			t.Errorf("%q passes with no domains", url)
		}
	}
}

func TestChoices(t *testing.T) {
	raw := []byte(`["a.b", "c|\n\"d\\"]`)
	if got, want := alternatives(raw, appendRegex, "(", "|", ")"), `(a\.b|c\|\n"d\\)`; got != want {
		t.Errorf("regex %q, want %q", got, want)
	}
	if got, want := alternatives(raw, appendGBNF, "root ::= ", " | ", ""), `root ::= "a.b" | "c|\n\"d\\"`; got != want {
		t.Errorf("grammar %q, want %q", got, want)
	}
}

func TestCountCall(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    Dialect
		e    Endpoint
		body string
		seq  int
		path string // empty: it cannot be counted
		want string
	}{
		{"vllm chat", VLLM, Chat, `{"temperature":1,"tools":[{"type":"function","function":{"name":"f"}}],"model":"m","messages":[ {"role":"user","content":"a","name":null}],"max_tokens":5}`, 0,
			"/tokenize", `{"model":"served","tools":[{"type":"function","function":{"name":"f"}}],"messages":[ {"role":"user","content":"a"}]}`},
		{"vllm completion", VLLMNixl, Completions, `{"model":"m","prompt":["a", "b"],"n":2,"add_special_tokens":false}`, 3, "/tokenize",
			`{"model":"served","prompt":"b","add_special_tokens":false}`},
		{"effort is not counted", VLLM, Chat, with(`"reasoning_effort":"low"`), 0, "", ""},
		{"llama.cpp chat", LlamaCPP, Chat, `{"model":"m","messages":[{"role":"developer","content":"a"}],"stream":true}`, 0,
			"/v1/chat/completions/input_tokens", `{"messages":[{"role":"system","content":"a"}]}`},
		{"llama.cpp completion", LlamaCPP, Completions, `{"model":"m","prompt":"a"}`, 0, "/tokenize", `{"add_special":true,"parse_special":true,"content":"a"}`},
		{"a picture", VLLM, Chat, message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}`), 0, "", ""},
		{"no tokenizer", OpenAI, Chat, chat + "}", 0, "", ""},
		{"our own workers", Bulkhead, Chat, chat + "}", 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := take(tc.d, tc.e, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			call, ok := r.CountCall(tc.d, "served", tc.seq)
			if ok != (tc.path != "") || ok && (call.Path != tc.path || string(call.Body) != tc.want) {
				t.Errorf("got %v %s %s", ok, call.Path, call.Body)
			}
		})
	}
	r, err := takeUnder(Policy{Dialect: VLLM, Grants: []string{"prompt_token_ids"}}, Completions, `{"model":"m","prompt":[1,2]}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := r.CountCall(VLLM, "served", 0); ok {
		t.Error("tokens are counted again")
	}
}

func TestHead(t *testing.T) {
	r, err := take(VLLM, Chat, chat+"}")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.Head(0, 9)); got != `[{"role":` {
		t.Errorf("head of a chat: %s", got)
	}
	if got := r.Head(0, 1<<20); len(got) != len(`[{"role":"user","content":"hello"}]`) {
		t.Errorf("whole head: %s", got)
	}
	r, err = take(VLLM, Completions, `{"model":"m","prompt":["abc","def"]}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.Head(1, 3)); got != `"de` {
		t.Errorf("head of a prompt: %s", got)
	}
	if allocs := testing.AllocsPerRun(10, func() { r.Head(0, 3) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
