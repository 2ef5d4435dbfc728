package upstream

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

const chat = `{"model":"recall","messages":[{"role":"user","content":"hello"}]`

// with is a sound chat body with more members.
func with(members string) string { return chat + "," + members + "}" }

// take scans and judges a body with nothing granted.
func take(d Dialect, e Endpoint, body string) (*Request, *fault.Error) {
	return takeUnder(Policy{Dialect: d}, e, body)
}

func takeUnder(p Policy, e Endpoint, body string) (*Request, *fault.Error) {
	b, err := Scan(e, []byte(body))
	if err != nil {
		return nil, err
	}
	return b.Judge(p)
}

func prefill(r *Request) []byte  { return r.Leg(Bulkhead, PrefillRole, control()).Body }
func decoding(r *Request) []byte { return r.Leg(Bulkhead, DecodeRole, control()).Body }

func TestScanTakes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		e     Endpoint
		body  string
		check func(r *Request) bool
	}{
		{"the least chat", Chat, chat + "}", func(r *Request) bool {
			return r.Model == "recall" && r.Text == 5 && r.Messages == 1 && r.Streaming == Whole && !r.Max.Known && len(r.Dropped) == 0
		}},
		{"the least completion", Completions, `{"model":"m","prompt":"abc"}`, func(r *Request) bool { return r.Text == 3 && r.Messages == 1 }},
		{"a list of one prompt", Completions, `{"model":"m","prompt":[ "abc" ]}`, func(r *Request) bool { return r.Text == 3 }},
		{"white space", Chat, " \n{ \"model\" : \"m\" , \"messages\" : [ { \"role\" : \"user\" , \"content\" : \"a\" } ] } \r\n\t", func(r *Request) bool { return r.Text == 1 }},
		{"escapes in keys", Chat, `{"mode\u006c":"m","messages":[{"\u0072ole":"user","content":"a"}]}`, func(r *Request) bool { return r.Model == "m" }},
		{"text is measured decoded", Chat, `{"model":"m","messages":[{"role":"system","content":"é"},{"role":"user","content":"\u00e9\n\ud83d\ude00"}]}`,
			func(r *Request) bool { return r.Text == 2+2+1+4 && r.Messages == 2 }},
		{"text parts", Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"ab"},{"text":"c","type":"text"}]}]}`,
			func(r *Request) bool { return r.Text == 3 }},
		{"what libraries send back", Chat, `{"model":"m","messages":[{"role":"assistant","content":"a","refusal":null,"annotations":[],"tool_calls":null,"name":""},{"role":"user","content":"b"}]}`,
			func(r *Request) bool { return r.Text == 2 && len(r.Dropped) == 0 }},
		{"stream", Chat, with(`"stream":true,"stream_options":{"include_usage":true}`), func(r *Request) bool { return r.Streaming == Streamed && r.UsageChunk }},
		{"stream without usage", Chat, with(`"stream":true,"stream_options":{"include_usage":null,"include_obfuscation":false}`), func(r *Request) bool { return r.Streaming == Streamed && !r.UsageChunk }},
		{"nulls are absent", Chat, with(`"stream":null,"stop":null,"seed":null,"temperature":null,"max_tokens":null,"max_completion_tokens":7,"n":null,"tools":null,"user":null`),
			func(r *Request) bool {
				return r.Max == (Count{7, true}) && r.Streaming == Whole && len(r.Stops) == 0 && len(r.Dropped) == 0
			}},
		{"max_tokens", Chat, with(`"max_tokens":12`), func(r *Request) bool { return r.Max == (Count{12, true}) }},
		{"the greatest max_tokens", Chat, with(`"max_tokens":9223372036854775807`), func(r *Request) bool { return r.Max.N == 1<<63-1 }},
		{"sampling at its bounds", Chat, with(`"temperature":2,"top_p":1.0,"seed":-9223372036854775808,"stop":"x"`), func(r *Request) bool { return len(r.Stops) == 1 && r.Stops[0] == "x" }},
		{"zero temperature", Chat, with(`"temperature":0e0,"top_p":1e-9`), func(r *Request) bool { return true }},
		{"four stops", Chat, with(`"stop":["a","\n","é","\u0041"]`), func(r *Request) bool { return strings.Join(r.Stops, "|") == "a|\n|é|A" }},
		{"what has no effect is told", Chat, with(`"user":"u","metadata":{"user":"a","user":"b","rid":{"x":[1]}},"safety_identifier":"s"`),
			func(r *Request) bool { return strings.Join(r.Dropped, ",") == "user,metadata,safety_identifier" }},
		{"off values", Chat, with(`"n":1,"store":false,"tools":[ ],"logit_bias":{},"frequency_penalty":-0.0,"presence_penalty":0,"logprobs":false,"tool_choice":"none","parallel_tool_calls":true,"response_format":{ "type" : "text" },"service_tier":"auto"`),
			func(r *Request) bool { return len(r.Dropped) == 0 }},
		{"off values of a completion", Completions, `{"model":"m","prompt":"a","best_of":1,"echo":false,"suffix":"","logprobs":null}`, func(r *Request) bool { return true }},
		{"developer", Chat, `{"model":"m","messages":[{"role":"developer","content":"a"}]}`, func(r *Request) bool { return true }},
		{"the longest model name", Chat, `{"model":"` + strings.Repeat("m", 256) + `","messages":[{"role":"user","content":"a"}]}`, func(r *Request) bool { return len(r.Model) == 256 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := take(Bulkhead, tc.e, tc.body)
			if err != nil {
				t.Fatalf("refused: %v (%s)", err, err.Param)
			}
			if !tc.check(r) {
				t.Errorf("read %+v", r)
			}
			for _, leg := range [][]byte{prefill(r), decoding(r)} {
				if ok, bad := valid(leg); !ok || bad != fine {
					t.Errorf("leg body is not JSON: %s", leg)
				}
			}
		})
	}
}

func TestScanRefuses(t *testing.T) {
	msg := func(m string) string { return `{"model":"m","messages":[` + m + `]}` }
	for _, tc := range []struct {
		name  string
		e     Endpoint
		body  string
		code  fault.Code
		param string
	}{
		{"empty", Chat, "", fault.MalformedJSON, ""},
		{"not JSON", Chat, "hello", fault.MalformedJSON, ""},
		{"cut", Chat, chat, fault.MalformedJSON, ""},
		{"NaN", Chat, with(`"temperature":NaN`), fault.MalformedJSON, ""},
		{"minus", Chat, with(`"temperature":-`), fault.MalformedJSON, ""},
		{"array", Chat, `[1]`, fault.WrongType, "body"},
		{"null", Chat, `null`, fault.WrongType, "body"},
		{"byte order mark", Chat, "\xef\xbb\xbf" + chat + "}", fault.ByteOrderMark, ""},
		{"UTF-16", Chat, "{\x00\"\x00", fault.MalformedJSON, ""},
		{"invalid UTF-8", Chat, msg("{\"role\":\"user\",\"content\":\"\xff\"}"), fault.InvalidUTF8, ""},
		{"lone surrogate", Chat, msg(`{"role":"user","content":"\ud800"}`), fault.LoneSurrogate, ""},
		{"trailing text", Chat, chat + "} {}", fault.TrailingBytes, ""},
		{"trailing NUL", Chat, chat + "}\x00", fault.TrailingBytes, ""},
		{"65 levels in what is opaque", Chat, with(`"metadata":` + strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat("}", 64)), fault.TooDeep, ""},
		{"65 levels under an unlisted key", Chat, with(`"logit_bias":` + strings.Repeat(`[`, 70)), fault.TooDeep, ""},

		{"no model", Chat, `{"messages":[{"role":"user","content":"a"}]}`, fault.MissingField, "model"},
		{"model null", Chat, `{"model":null,"messages":[{"role":"user","content":"a"}]}`, fault.WrongType, "model"},
		{"model number", Chat, `{"model":3}`, fault.WrongType, "model"},
		{"model too long", Chat, `{"model":"` + strings.Repeat("m", 257) + `"}`, fault.ModelNotFound, "model"},
		{"no messages", Chat, `{"model":"m"}`, fault.MissingField, "messages"},
		{"no prompt", Completions, `{"model":"m"}`, fault.MissingField, "prompt"},
		{"prompt of a chat", Chat, with(`"prompt":"a"`), fault.UnknownField, "prompt"},
		{"messages of a completion", Completions, `{"model":"m","prompt":"a","messages":[]}`, fault.UnknownField, "messages"},
		{"no message", Chat, msg(""), fault.EmptyPrompt, "messages"},
		{"messages null", Chat, `{"model":"m","messages":null}`, fault.WrongType, "messages"},
		{"messages object", Chat, `{"model":"m","messages":{}}`, fault.WrongType, "messages"},
		{"message string", Chat, msg(`"a"`), fault.WrongType, "messages[0]"},
		{"messages without text", Chat, msg(`{"role":"user","content":""},{"role":"user","content":[]}`), fault.EmptyPrompt, "messages"},
		{"empty prompt", Completions, `{"model":"m","prompt":""}`, fault.EmptyPrompt, "prompt"},
		{"empty list of prompts", Completions, `{"model":"m","prompt":[]}`, fault.EmptyPrompt, "prompt"},
		{"two prompts", Completions, `{"model":"m","prompt":["a","b"]}`, fault.UnsupportedList, "prompt"},
		{"tokens as prompt", Completions, `{"model":"m","prompt":[1,2]}`, fault.UnsupportedList, "prompt"},
		{"lists of tokens", Completions, `{"model":"m","prompt":[[1,2]]}`, fault.UnsupportedList, "prompt"},
		{"prompt null", Completions, `{"model":"m","prompt":null}`, fault.WrongType, "prompt"},
		{"prompt number", Completions, `{"model":"m","prompt":7}`, fault.WrongType, "prompt"},

		{"no role", Chat, msg(`{"content":"a"}`), fault.MissingField, "messages[0].role"},
		{"no content", Chat, msg(`{"role":"user"}`), fault.MissingField, "messages[0].content"},
		{"content null", Chat, msg(`{"role":"user","content":null}`), fault.WrongType, "messages[0].content"},
		{"content number", Chat, msg(`{"role":"user","content":4}`), fault.WrongType, "messages[0].content"},
		{"role of nobody", Chat, msg(`{"role":"root","content":"a"}`), fault.WrongType, "messages[0].role"},
		{"role tool", Chat, msg(`{"role":"tool","content":"a"}`), fault.WrongType, "messages[0].role"},
		{"role in capitals", Chat, msg(`{"role":"User","content":"a"}`), fault.WrongType, "messages[0].role"},
		{"tool calls", Chat, msg(`{"role":"assistant","content":"a","tool_calls":[{"id":"x"}]}`), fault.UnsupportedField, "messages[0].tool_calls"},
		{"name", Chat, msg(`{"role":"user","content":"a"},{"role":"user","content":"a","name":"bob"}`), fault.UnsupportedField, "messages[1].name"},
		{"unknown in a message", Chat, msg(`{"role":"user","content":"a","weight":1}`), fault.UnknownField, "messages[0].weight"},
		{"repeated in a message", Chat, msg(`{"role":"user","content":"a","content":"b"}`), fault.RepeatedField, "messages[0].content"},
		{"repeated in a message by escape", Chat, msg(`{"role":"user","content":"a","r\u006fle":"system"}`), fault.RepeatedField, "messages[0].role"},
		{"image", Chat, msg(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}`), fault.UnsupportedContent, "messages[0].content[0]"},
		{"image before its type", Chat, msg(`{"role":"user","content":[{"type":"text","text":"a"},{"image_url":{"url":"http://x"}}]}`), fault.UnsupportedContent, "messages[0].content[1]"},
		{"part string", Chat, msg(`{"role":"user","content":["a"]}`), fault.WrongType, "messages[0].content[0]"},
		{"part without type", Chat, msg(`{"role":"user","content":[{"text":"a"}]}`), fault.MissingField, "messages[0].content[0].type"},
		{"part without text", Chat, msg(`{"role":"user","content":[{"type":"text"}]}`), fault.MissingField, "messages[0].content[0].text"},
		{"part text null", Chat, msg(`{"role":"user","content":[{"type":"text","text":null}]}`), fault.WrongType, "messages[0].content[0].text"},
		{"unknown in a part", Chat, msg(`{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}`), fault.UnknownField, "messages[0].content[0].cache_control"},
		{"repeated in a part", Chat, msg(`{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}`), fault.RepeatedField, "messages[0].content[0].text"},
		{"repeated type in a part", Chat, msg(`{"role":"user","content":[{"type":"text","type":"text","text":"b"}]}`), fault.RepeatedField, "messages[0].content[0].type"},

		{"unknown field", Chat, with(`"zzz":1`), fault.UnknownField, "zzz"},
		{"right field, wrong case", Chat, with(`"Temperature":1`), fault.UnknownField, "Temperature"},
		{"model in capitals beside model", Chat, with(`"MODEL":"other"`), fault.UnknownField, "MODEL"},
		{"empty name", Chat, with(`"":1`), fault.UnknownField, "(a field with an empty name)"},
		{"repeated", Chat, with(`"model":"other"`), fault.RepeatedField, "model"},
		{"repeated by escape", Chat, with(`"\u006dodel":"other"`), fault.RepeatedField, "model"},
		{"repeated after null", Chat, with(`"seed":null,"seed":1`), fault.RepeatedField, "seed"},
		{"repeated in stream_options", Chat, with(`"stream_options":{"include_usage":true,"include_usage":false}`), fault.RepeatedField, "stream_options.include_usage"},
		{"unknown in stream_options", Chat, with(`"stream_options":{"continuous_usage_stats":true}`), fault.UnknownField, "stream_options.continuous_usage_stats"},
		{"obfuscation", Chat, with(`"stream_options":{"include_obfuscation":true}`), fault.UnsupportedField, "stream_options.include_obfuscation"},
		{"stream_options string", Chat, with(`"stream_options":"x"`), fault.WrongType, "stream_options"},
		{"stream string", Chat, with(`"stream":"true"`), fault.WrongType, "stream"},
		{"stream number", Chat, with(`"stream":1`), fault.WrongType, "stream"},

		{"max_tokens 0", Chat, with(`"max_tokens":0`), fault.OutOfRange, "max_tokens"},
		{"max_tokens -1", Chat, with(`"max_tokens":-1`), fault.OutOfRange, "max_tokens"},
		{"max_tokens beyond int64", Chat, with(`"max_tokens":9223372036854775808`), fault.OutOfRange, "max_tokens"},
		{"max_tokens of a thousand digits", Chat, with(`"max_tokens":1` + strings.Repeat("0", 1000)), fault.OutOfRange, "max_tokens"},
		{"max_tokens fraction", Chat, with(`"max_tokens":1.0`), fault.WrongType, "max_tokens"},
		{"max_tokens exponent", Chat, with(`"max_tokens":1e3`), fault.WrongType, "max_tokens"},
		{"max_tokens string", Chat, with(`"max_tokens":"5"`), fault.WrongType, "max_tokens"},
		{"both lengths", Chat, with(`"max_tokens":5,"max_completion_tokens":5`), fault.ConflictingFields, "max_completion_tokens"},
		{"the newer length for completions", Completions, `{"model":"m","prompt":"a","max_completion_tokens":5}`, fault.UnknownField, "max_completion_tokens"},
		{"temperature 2.1", Chat, with(`"temperature":2.1`), fault.OutOfRange, "temperature"},
		{"temperature negative", Chat, with(`"temperature":-0.1`), fault.OutOfRange, "temperature"},
		{"temperature 1e999", Chat, with(`"temperature":1e999`), fault.OutOfRange, "temperature"},
		{"temperature of a thousand digits", Chat, with(`"temperature":0.` + strings.Repeat("1", 1000)), fault.WrongType, "temperature"},
		{"temperature string", Chat, with(`"temperature":"hot"`), fault.WrongType, "temperature"},
		{"top_p 0", Chat, with(`"top_p":0`), fault.WrongType, "top_p"},
		{"top_p 1.01", Chat, with(`"top_p":1.01`), fault.WrongType, "top_p"},
		{"seed fraction", Chat, with(`"seed":1.5`), fault.WrongType, "seed"},
		{"seed beyond int64", Chat, with(`"seed":9223372036854775808`), fault.OutOfRange, "seed"},
		{"stop empty", Chat, with(`"stop":""`), fault.WrongType, "stop"},
		{"stop too long", Chat, with(`"stop":"` + strings.Repeat("s", 257) + `"`), fault.WrongType, "stop"},
		{"five stops", Chat, with(`"stop":["a","b","c","d","e"]`), fault.TooManyValues, "stop"},
		{"stop number", Chat, with(`"stop":[1]`), fault.WrongType, "stop"},
		{"stop object", Chat, with(`"stop":{}`), fault.WrongType, "stop"},
		{"n 2", Chat, with(`"n":2`), fault.OutOfRange, "n"},
		{"n 0", Chat, with(`"n":0`), fault.OutOfRange, "n"},
		{"best_of 3", Completions, `{"model":"m","prompt":"a","best_of":3}`, fault.OutOfRange, "best_of"},
		{"store", Chat, with(`"store":true`), fault.UnsupportedField, "store"},
		{"tools", Chat, with(`"tools":[{"type":"function"}]`), fault.UnsupportedField, "tools"},
		{"tool choice", Chat, with(`"tool_choice":"required"`), fault.UnsupportedField, "tool_choice"},
		{"logit_bias", Chat, with(`"logit_bias":{"50256":-100}`), fault.UnsupportedField, "logit_bias"},
		{"logprobs", Chat, with(`"logprobs":true`), fault.UnsupportedField, "logprobs"},
		{"logprobs 0 of a completion", Completions, `{"model":"m","prompt":"a","logprobs":0}`, fault.UnsupportedField, "logprobs"},
		{"echo", Completions, `{"model":"m","prompt":"a","echo":true}`, fault.UnsupportedField, "echo"},
		{"penalty", Chat, with(`"frequency_penalty":0.1`), fault.UnsupportedField, "frequency_penalty"},
		{"penalty string", Chat, with(`"presence_penalty":"0"`), fault.UnsupportedField, "presence_penalty"},
		{"json mode", Chat, with(`"response_format":{"type":"json_object"}`), fault.UnsupportedField, "response_format"},
		{"user number", Chat, with(`"user":1`), fault.WrongType, "user"},
		{"metadata string", Chat, with(`"metadata":"x"`), fault.WrongType, "metadata"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := take(Bulkhead, tc.e, tc.body)
			if err == nil {
				t.Fatalf("taken: %+v", r)
			}
			if err.Code != tc.code || err.Param != tc.param {
				t.Errorf("got %s %q, want %s %q", err.Code, err.Param, tc.code, tc.param)
			}
			if err.Status < 400 || err.Status >= 500 {
				t.Errorf("status %d", err.Status)
			}
		})
	}
}

// TestReservedIsNever sets every reserved field at every place that is inspected, plain
// and by escape.
func TestReservedIsNever(t *testing.T) {
	for _, n := range reserved {
		escaped := fmt.Sprintf(`\u%04x%s`, n.name[0], n.name[1:])
		for _, key := range []string{n.name, escaped} {
			for _, tc := range []struct{ body, param string }{
				{with(`"` + key + `":null`), n.name},
				{with(`"stream_options":{"` + key + `":1}`), "stream_options." + n.name},
				{`{"model":"m","messages":[{"role":"user","content":"a","` + key + `":{}}]}`, "messages[0]." + n.name},
				{`{"model":"m","messages":[{"role":"user","content":[{"` + key + `":[]}]}]}`, "messages[0].content[0]." + n.name},
			} {
				_, err := take(Bulkhead, Chat, tc.body)
				if err == nil || err.Code != fault.ReservedField || err.Param != tc.param {
					t.Errorf("%s: %v", tc.body, err)
				}
			}
			if _, err := take(Bulkhead, Completions, `{"model":"m","prompt":"a","`+key+`":1}`); err == nil || err.Code != fault.ReservedField {
				t.Errorf("completions, %s: %v", key, err)
			}
		}
		for _, f := range rows(Bulkhead) {
			if f.name == n.name {
				t.Errorf("%s is allowed and reserved", f.name)
			}
		}
	}
}

func control() Control {
	return Control{ID: "bh-1", Host: `ho"st`, Port: 8998, Room: 1<<63 - 1, Model: "served", MaxTokens: 9, Seed: 77}
}

func TestLegs(t *testing.T) {
	const head = `"rid":"bh-1","bootstrap_host":"ho\"st","bootstrap_port":8998,"bootstrap_room":9223372036854775807,"model":"served"`
	for _, tc := range []struct {
		name, body, prefill, decode string
	}{
		{"untouched bytes stay",
			` { "messages" : [ {"role":"user","content":"\u0061/\/\u00e9 é" , "refusal":null}], "temperature" : 0.123456789012345678 ,"model":"m"} ` + "\n",
			` {` + head + `,"seed":77,"max_tokens":1,"stream":false, "messages" : [ {"role":"user","content":"\u0061/\/\u00e9 é"}], "temperature" : 0.123456789012345678} ` + "\n",
			` {` + head + `,"seed":77,"max_tokens":9,"stream":false, "messages" : [ {"role":"user","content":"\u0061/\/\u00e9 é"}], "temperature" : 0.123456789012345678} ` + "\n"},
		{"controlled members at the front, in the middle and at the end",
			`{"model":"m","stream":true, "messages":[{"name":null,"tool_calls":[],"role":"user","content":"a"}],"max_tokens":5,"top_p":0.5,"stream_options":{"include_usage":true},"n":1}`,
			`{` + head + `,"seed":77,"max_tokens":1,"stream":false,"messages":[{"role":"user","content":"a"}],"top_p":0.5}`,
			`{` + head + `,"seed":77,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[{"role":"user","content":"a"}],"top_p":0.5}`},
		{"a seed of the client, and stops for decode only",
			`{"model":"m","seed":5,"stop":["x", "y"],"messages":[{"role":"developer","content":"a"}]}`,
			`{` + head + `,"max_tokens":1,"stream":false,"seed":5,"messages":[{"role":"system","content":"a"}]}`,
			`{` + head + `,"max_tokens":9,"stream":false,"seed":5,"stop":["x", "y"],"messages":[{"role":"system","content":"a"}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := []byte(tc.body)
			r, err := take(Bulkhead, Chat, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // building a leg must not change what the next one is built from
				if got := string(prefill(r)); got != tc.prefill {
					t.Errorf("prefill\n got %s\nwant %s", got, tc.prefill)
				}
				if got := string(decoding(r)); got != tc.decode {
					t.Errorf("decode\n got %s\nwant %s", got, tc.decode)
				}
			}
			if string(body) != tc.body {
				t.Error("the client's body was changed")
			}
		})
	}
	r, err := take(Bulkhead, Completions, `{"model":"m","prompt": [ "a]b" ] }`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(decoding(r)), `{`+head+`,"seed":77,"max_tokens":9,"stream":false,"prompt": "a]b" }`; got != want {
		t.Errorf("list of one\n got %s\nwant %s", got, want)
	}
}
