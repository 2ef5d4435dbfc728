package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

func open(c *Config) { c.OpenDialect = true }

// routed sends both legs as a router does: the same body to both, no pass, and what the
// router itself writes.
type routed struct {
	*pair
	host, port any
}

func (p *routed) post(s *side, path string, room any, body map[string]any) reply {
	return p.postWithin(context.Background(), s, path, room, body)
}

func (p *routed) postWithin(ctx context.Context, s *side, path string, room any, body map[string]any) reply {
	full := map[string]any{"bootstrap_room": room, "bootstrap_host": p.host, "bootstrap_port": p.port, "temperature": 0}
	for k, v := range body {
		full[k] = v
	}
	data, err := json.Marshal(full)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+path, bytes.NewReader(data))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer") // a router without a key sends this
	return read(p.client.Do(req))
}

func (p *routed) legs(path string, room any, prefill, decode map[string]any) (pre, dec reply) {
	done := make(chan reply, 1)
	go func() { done <- p.post(p.prefill, path, room, prefill) }()
	dec = p.post(p.decode, path, room, decode)
	return <-done, dec
}

// word is a prompt with one answer.
func word(i int) (prompt, want string) {
	name := [...]string{"heliotrope", "periwinkle", "aquamarine", "terracotta"}[i]
	return fmt.Sprintf("The code word of ship %d is %s. The code word of ship %d is", i, name, i), " " + name + "."
}

func newRouted(t *testing.T, setups ...setup) *routed {
	return &routed{newPair(t, append([]setup{open}, setups...)...), testHost, testPort}
}

func TestOpenScalar(t *testing.T) {
	p := newRouted(t)
	prompt, want := word(0)
	for i, c := range []struct {
		room any
		port any
	}{{int64(math.MaxInt64), testPort}, {int64(1)<<62 + 1, nil}, {0, testPort}} {
		p.port = c.port
		body := map[string]any{"prompt": prompt, "max_completion_tokens": 12, "model": []any{"unknown", nil, "recall"}[i], "rid": nil}
		pre, dec := p.legs("/v1/completions", c.room, body, body)
		if pre.status != 200 || dec.status != 200 || text(dec) != want {
			t.Errorf("room %v: prefill %d %s, decode %d %s", c.room, pre.status, pre.body, dec.status, dec.body)
		}
		if a, b := parseAnswer(pre.body).Usage, parseAnswer(dec.body).Usage; a.Prompt != b.Prompt || a.Completion != 1 {
			t.Errorf("usage: %+v and %+v", a, b)
		}
	}
	chat := map[string]any{"messages": []map[string]any{{"role": "user", "content": prompt}}, "max_tokens": 12, "stream": true}
	pre, dec := p.legs("/v1/chat/completions", 99, chat, chat)
	if s := parseStream(t, dec.body); pre.status != 200 || !s.done || s.finish == "" {
		t.Errorf("stream: %d %s", dec.status, dec.body)
	}
	p.whole()
}

func TestOpenLists(t *testing.T) {
	p := newRouted(t)
	prompt, want := word(0)
	host, port := []string{testHost, testHost}, []int{testPort, testPort}
	p.host, p.port = host, port
	twice := map[string]any{"prompt": prompt, "n": 2, "max_tokens": 12}
	_, dec := p.legs("/v1/completions", []int{11, 12}, twice, twice)
	v := parseAnswer(dec.body)
	if len(v.Choices) != 2 || v.Choices[0].Text != want || v.Choices[1].Text != want {
		t.Fatalf("n=2: %d %s", dec.status, dec.body)
	}
	if one := v.Usage; one.Prompt != len(prompt)+1 || one.Total != one.Prompt+one.Completion {
		t.Errorf("a prompt that is answered twice counts once: %+v", one)
	}
	var prompts, wants []string
	for i := range 3 {
		a, b := word(i)
		prompts, wants = append(prompts, a), append(wants, b)
	}
	p.host, p.port = append(host, testHost), append(port, testPort)
	for _, stream := range []bool{false, true} {
		three := map[string]any{"prompt": prompts, "max_tokens": 12, "stream": stream, "stream_options": map[string]any{"include_usage": true}}
		room := 20
		if stream {
			room = 30
		}
		_, dec := p.legs("/v1/completions", []int{room, room + 1, room + 2}, three, three)
		got := indexed(t, dec, stream)
		for i, want := range wants {
			if got[i] != want {
				t.Errorf("stream %v, prompt %d: %q, want %q", stream, i, got[i], want)
			}
		}
	}
	p.whole()
}

// indexed is the text of each choice.
func indexed(t *testing.T, r reply, stream bool) map[int]string {
	t.Helper()
	texts, finished := map[int]string{}, map[int]bool{}
	parts := []string{r.body}
	if stream {
		if !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
			t.Errorf("no end: %d %s", r.status, r.body)
		}
		parts = strings.Split(strings.TrimSuffix(r.body, "data: [DONE]\n\n"), "\n\n")
	}
	for _, part := range parts {
		var v struct {
			Choices []struct {
				Index  int
				Text   string
				Finish *string `json:"finish_reason"`
			}
		}
		if part == "" {
			continue
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(part, "data: ")), &v); err != nil {
			t.Fatalf("%v: %s", err, part)
		}
		for _, c := range v.Choices {
			if finished[c.Index] {
				t.Errorf("choice %d goes on behind its end", c.Index)
			}
			texts[c.Index] += c.Text
			finished[c.Index] = c.Finish != nil
		}
	}
	for i, done := range finished {
		if !done {
			t.Errorf("choice %d has no end", i)
		}
	}
	return texts
}

func TestGenerate(t *testing.T) {
	p := newRouted(t)
	a, wantA := word(0)
	b, wantB := word(1)
	params := map[string]any{"max_new_tokens": 12, "temperature": 0}
	one := map[string]any{"text": a, "sampling_params": params}
	pre, dec := p.legs("/generate", 41, one, one)
	var g generated
	if err := json.Unmarshal([]byte(dec.body), &g); err != nil || g.Text != wantA || g.Meta.Prompt != len(a)+1 || g.Meta.Finish == nil {
		t.Fatalf("%v: prefill %d %s, decode %d %s", err, pre.status, pre.body, dec.status, dec.body)
	}
	ids := func(s string) []int {
		out := []int{}
		for _, c := range []byte(s) {
			out = append(out, int(c))
		}
		return out
	}
	p.host, p.port = []string{testHost, testHost}, []any{nil, nil}
	both := map[string]any{"input_ids": [][]int{ids(a), ids(b)}, "sampling_params": params}
	_, dec = p.legs("/generate", []int{42, 43}, both, both)
	var list []generated
	if err := json.Unmarshal([]byte(dec.body), &list); err != nil || len(list) != 2 || list[0].Text != wantA || list[1].Text != wantB {
		t.Errorf("two lists of ids: %d %s", dec.status, dec.body)
	}
	p.host, p.port = testHost, testPort
	one["stream"] = true
	_, dec = p.legs("/generate", 44, one, one)
	last := strings.Split(dec.body, "\n\n")
	if len(last) < 3 || !strings.Contains(last[len(last)-3], `"text":"`+wantA) || !strings.HasSuffix(dec.body, "data: [DONE]\n\n") {
		t.Errorf("stream: %s", dec.body)
	}
	p.whole()
}

// TestOpenRefuses holds what a router cannot make the workers do.
func TestOpenRefuses(t *testing.T) {
	p := newRouted(t, atPrefill(func(c *Config) { c.Pages, c.Window = 8, 128 }))
	secret, _ := word(2)
	prompt, want := word(0)
	body := func(prompt string) map[string]any { return map[string]any{"prompt": prompt, "max_tokens": 12} }

	t.Run("over-long at prefill", func(t *testing.T) {
		long := body(strings.Repeat("a stranger's words. ", 20))
		pre, dec := p.legs("/v1/completions", 51, long, long)
		if pre.status != http.StatusBadRequest || dec.status != http.StatusBadRequest || text(dec) != "" {
			t.Errorf("prefill %d, decode %d %s", pre.status, dec.status, dec.body)
		}
	})
	t.Run("the room of another", func(t *testing.T) {
		// The legs meet, and do not mean the same.
		pre, dec := p.legs("/v1/completions", 52, body(secret), body(prompt))
		if pre.status == 200 || dec.status == 200 || code(dec) != string(fault.LegsDisagree) {
			t.Errorf("prefill %d, decode %d %s", pre.status, dec.status, dec.body)
		}
	})
	t.Run("the same room again", func(t *testing.T) {
		if _, dec := p.legs("/v1/completions", 53, body(prompt), body(prompt)); text(dec) != want {
			t.Fatalf("control: %d %s", dec.status, dec.body)
		}
		for _, s := range []*side{p.prefill, p.decode} {
			if r := p.post(s, "/v1/completions", 53, body(secret)); r.status != http.StatusConflict || text(r) != "" {
				t.Errorf("%d %s", r.status, r.body)
			}
		}
	})
	t.Run("the same room at once", func(t *testing.T) {
		done := make(chan reply, 2)
		for range 2 {
			go func() { done <- p.post(p.decode, "/v1/completions", 54, body(prompt)) }()
		}
		first := <-done // the second of the two, whichever it was
		pre := p.post(p.prefill, "/v1/completions", 54, body(prompt))
		second := <-done
		if first.status != http.StatusConflict || second.status != 200 || text(second) != want || pre.status != 200 {
			t.Errorf("decode %d %d %s, prefill %d", first.status, second.status, second.body, pre.status)
		}
	})
	for name, room := range map[string]any{"below": -5, "above": "9223372036854775808", "fraction": 1.5, "word": "x", "none": nil} {
		t.Run("a room "+name, func(t *testing.T) {
			if s, ok := room.(string); ok && s != "x" {
				room = json.Number(s)
			}
			for _, s := range []*side{p.prefill, p.decode} {
				if r := p.post(s, "/v1/completions", room, body(prompt)); r.status != http.StatusBadRequest {
					t.Errorf("%d %s", r.status, r.body)
				}
			}
		})
	}
	t.Run("lists that do not fit", func(t *testing.T) {
		for _, c := range []map[string]any{
			{"prompt": []string{"a", "b"}, "bootstrap_room": []int{61, 62, 63}},
			{"prompt": []string{"a", "b"}, "bootstrap_room": 61},
			{"prompt": "a", "bootstrap_room": []int{}},
			{"prompt": "a", "bootstrap_room": []int{61, 61}},
			{"prompt": "a", "bootstrap_room": 61, "n": 2},
			{"prompt": []string{"a", "b"}, "bootstrap_room": []int{61, 62}, "n": 2},
			{"prompt": "a", "bootstrap_room": []int{61, 62}, "bootstrap_host": []string{testHost}},
		} {
			if r := p.post(p.decode, "/v1/completions", c["bootstrap_room"], c); r.status < 400 || r.status > 499 {
				t.Errorf("%v: %d %s", c, r.status, r.body)
			}
		}
	})
	t.Run("the router leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan reply, 1)
		go func() { done <- p.postWithin(ctx, p.decode, "/v1/completions", 71, body(prompt)) }()
		p.eventually("decode has the leg", func() bool { return p.decode.Status().Attempts == 1 })
		cancel()
		<-done
		p.whole()
	})
	p.whole()
	if _, dec := p.legs("/v1/completions", 81, body(prompt), body(prompt)); text(dec) != want {
		t.Errorf("afterwards: %d %s", dec.status, dec.body)
	}
}

// TestOpenIsOff holds that without the option no leg is served that the gateway did not
// authorise, and that with it the gateway's are.
func TestOpenIsOff(t *testing.T) {
	prompt, _ := word(0)
	shut := &routed{newPair(t), testHost, testPort}
	for path, want := range map[string]int{"/v1/completions": http.StatusForbidden, "/generate": http.StatusNotFound} {
		if r := shut.post(shut.decode, path, 91, map[string]any{"prompt": prompt, "text": prompt}); r.status != want {
			t.Errorf("%s: %d %s, want %d", path, r.status, r.body, want)
		}
	}
	newRouted(t).serves()
}

// TestFieldsWithoutEffect sends what routers pass on of clients: an answer is the same
// with all of it as with none.
func TestFieldsWithoutEffect(t *testing.T) {
	p := newRouted(t)
	prompt, want := word(0)
	body := map[string]any{"prompt": prompt, "max_tokens": 12}
	for _, name := range [...]string{
		"kv_transfer_params", "ec_transfer_params", "disaggregated_params", "disagg_prefill_resp", "transfer_id", "session_params", "custom_logit_processor",
		"custom_params", "input_embeds", "image_data", "lora_path", "lora_id", "return_hidden_states", "extra_key", "cache_salt", "priority", "data_parallel_rank",
		"routed_dp_rank", "disagg_prefill_dp_rank", "bootstrap_pair_key", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
		"id_slot", "cache_prompt", "vllm_xargs", "nvext", "request_id", "session_id", "conversation_id", "log_metrics", "no_logs", "return_bytes", "stream_reasoning",
		"return_text_in_logprobs", "chat_template", "chat_template_kwargs", "ebnf", "regex", "json_schema", "skip_special_tokens", "no_stop_trim", "ignore_eos",
	} {
		body[name] = map[string]any{"remote_host": "10.0.0.9", "do_remote_prefill": true, "prompt_token_ids": []int{1, 2}}
	}
	body["rid"] = "victim-1"
	_, dec := p.legs("/v1/completions", 95, body, body)
	if text(dec) != want || parseAnswer(dec.body).ID != "victim-1" {
		t.Errorf("%d %s", dec.status, dec.body)
	}
}

// TestOpenAnswers holds what routers read before they send anything.
func TestOpenAnswers(t *testing.T) {
	p := newRouted(t)
	for path, want := range map[string][]string{
		"/health": nil, "/health_generate": nil, "/v1/models": {`"owned_by":"sglang"`}, "/get_server_info": {`"served_model_name":"recall"`},
		"/model_info": {`"is_generation":true`}, "/get_model_info": {`"model_path":"recall"`},
		"/v1/loads": {`"dp_rank":0`, `"num_running_reqs":0`, `"max_total_num_tokens":1024`},
	} {
		for _, s := range []*side{p.prefill, p.decode} {
			r := read(p.client.Get(s.http.URL + path + "?include=core"))
			if r.status != 200 || !containsAll(r.body, want...) {
				t.Errorf("%s: %d %s", path, r.status, r.body)
			}
		}
	}
	if r := read(p.client.Get(p.decode.http.URL + "/version")); r.status != http.StatusNotFound {
		t.Errorf("/version: %d; a router would take it for another engine", r.status)
	}
}
