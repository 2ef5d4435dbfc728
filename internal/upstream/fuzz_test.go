package upstream

import (
	"bytes"
	"encoding/json"
	"testing"
)

// objects walks over the members of a JSON object in order, as encoding/json reads them.
func objects(t *testing.T, b []byte) (names []string, values map[string]json.RawMessage) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	values = map[string]json.RawMessage{}
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		t.Fatalf("no object: %s", b)
	}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		name, _ := tok.(string)
		names = append(names, name)
		values[name] = raw
	}
	if _, err := d.Token(); err != nil || d.More() {
		t.Fatalf("%s: %v", b, err)
	}
	return names, values
}

// ours are the controlled members of a leg, as the golden control writes them.
func ours(d Dialect, role Role, r *Request) map[string]string {
	m := map[string]string{"model": `"served"`, "max_tokens": "9"}
	switch d {
	case Bulkhead, SGLangPD:
		m["bootstrap_host"], m["bootstrap_port"], m["bootstrap_room"] = `"ho\"st"`, "8998", "9223372036854775807"
		m["rid"] = `"bh-1"`
	case SGLang:
		m["rid"] = `"bh-1"`
	case VLLMNixl, VLLMMooncake:
		c := goldenControl(d, role, 0)
		m["kv_transfer_params"] = string(transfer(nil, d, role, c)[len(`,"kv_transfer_params":`):])
	case LlamaCPP:
		m["cache_prompt"] = "false"
	case OpenAI:
		m["safety_identifier"] = `"tenant-7"`
		if r.maxName == "max_completion_tokens" {
			delete(m, "max_tokens")
			m["max_completion_tokens"] = "9"
		}
	}
	if d.Traits().Salted {
		m["cache_salt"], m["priority"] = `"salt-`+string(role)+`"`, "3"
	}
	if role == PrefillRole {
		m["max_tokens"], m["stream"] = "1", "false"
	} else {
		m["stream"] = "false"
		if r.Streaming == Streamed {
			m["stream"] = "true"
		}
	}
	return m
}

// FuzzScan holds for every dialect that whatever is taken gives legs that are sound JSON
// without a repeated member, in which each controlled member has our value, nothing
// arrives that is on no list, and what passes is the client's, byte for byte.
func FuzzScan(f *testing.F) {
	for i := range len(Dialects()) {
		d := uint8(i)
		f.Add(d, true, []byte(with(`"stream":true,"stop":["a"],"metadata":{"rid":1},"n":1`)))
		f.Add(d, false, []byte(`{"model":"m","prompt":["a"],"max_tokens":3}`))
		f.Add(d, false, []byte(`{"prompt":["a", "b\u0061"],"n":2,"seed":9,"model":"m","user":"x"}`))
		f.Add(d, true, []byte(`{"messages":[{"role":"developer","content":[{"type":"text","text":"a"}],"name":null}],"model":"m"}`))
		f.Add(d, true, []byte(with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"rid":{"rid":1,"rid":2}}}}],"max_completion_tokens":4`)))
		f.Add(d, true, []byte(with(`"guided_json":{"a":1},"zzz":[{}],"min_tokens":2,"priority":1,"chat_template_kwargs":{"thinking":true}`)))
		f.Add(d, true, []byte(with(`"guided_choice":["a","b\n"],"logit_bias":{"7":1},"response_format":{"type":"text"}`)))
		f.Add(d, true, []byte(message(`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}`)))
	}
	f.Fuzz(func(t *testing.T, which uint8, isChat bool, body []byte) {
		d := Dialects()[int(which)%len(Dialects())]
		e := Completions
		if isChat {
			e = Chat
		}
		before := bytes.Clone(body)
		b, fail := Scan(e, body)
		if fail != nil {
			return
		}
		r, fail := b.Judge(Policy{Dialect: d, Shadow: []string{"*"}, Grants: []string{"echo", "prompt_token_ids"}})
		if fail != nil {
			return
		}
		_, client := objects(t, body)
		for _, leg := range goldenLegs(d, r) {
			checkLeg(t, d, r, client, leg)
		}
		for i := range r.Sequences() {
			if call, ok := r.CountCall(d, "served", i); ok && !json.Valid(call.Body) {
				t.Fatalf("count call: %s", call.Body)
			}
		}
		if !bytes.Equal(before, body) {
			t.Fatal("the client's body was changed")
		}
	})
}

func checkLeg(t *testing.T, d Dialect, r *Request, client map[string]json.RawMessage, leg legOf) {
	if ok, _ := valid([]byte(leg.Body)); !ok {
		t.Fatalf("not sound: %s", leg.Body)
	}
	names, got := objects(t, []byte(leg.Body))
	if len(names) != len(got) {
		t.Fatalf("repeated: %q in %s", names, leg.Body)
	}
	want := ours(d, leg.Role, r)
	for name, v := range want {
		if string(got[name]) != v {
			t.Fatalf("%v %s: %s = %s in %s", d, leg.Role, name, got[name], leg.Body)
		}
	}
	for name, v := range got {
		if _, there := want[name]; there {
			continue
		}
		switch name {
		case "messages", "prompt", "stream_options", "n", "seed", "ignore_eos", "min_tokens":
			continue // changed inside, or written by the gateway in some cases; the golden legs hold them
		}
		f := lookup(d, r.Endpoint, []byte(name))
		if _, yes := forbidden([]byte(name)); yes && (f == nil || f.mode == never) {
			t.Fatalf("%v: %s arrives: %s", d, name, leg.Body)
		}
		if c, there := client[name]; there && (f == nil || f.mode == pass || f.mode == grant) && !bytes.Equal(c, v) {
			t.Fatalf("%v: %s was %s and arrives as %s", d, name, c, v)
		}
		if f != nil && (f.mode == drop || f.mode == off) {
			if _, there := client[name]; there && !isTarget(r, name) {
				t.Fatalf("%v: %s is not for the engine and arrives", d, name)
			}
		}
	}
}

// isTarget says whether a mapped field became a member of that name.
func isTarget(r *Request, name string) bool {
	for i := range r.writes {
		if target(&r.writes[i]) == name {
			return true
		}
	}
	return false
}
