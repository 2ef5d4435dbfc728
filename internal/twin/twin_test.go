package twin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// got is what a client gets.
type got struct {
	status int
	body   string
	cut    bool // the connection was cut
}

func post(h http.Handler, path string, body any, header ...string) got {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(b))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return serve(h, r)
}

func get(h http.Handler, path string) got {
	return serve(h, httptest.NewRequest(http.MethodGet, path, http.NoBody))
}

func serve(h http.Handler, r *http.Request) (g got) {
	w := httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
			}
			g.cut = true
		}
		g.status, g.body = w.Code, w.Body.String()
	}()
	h.ServeHTTP(w, r)
	return g
}

// legs sends both legs of a request at once.
func legs(p, d http.Handler, prefill, decode object) (gp, gd got) {
	var wg sync.WaitGroup
	wg.Go(func() { gp = post(p, "/v1/completions", prefill) })
	wg.Go(func() { gd = post(d, "/v1/completions", decode) })
	wg.Wait()
	return gp, gd
}

func tokensOf(t *testing.T, g got) int {
	t.Helper()
	var v struct {
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(g.body), &v); err != nil {
		t.Fatalf("status %d: not JSON: %v", g.status, err)
	}
	return v.Usage.Prompt
}

func completion(room int, prompt string) object {
	return object{"prompt": prompt, "bootstrap_room": room, "rid": fmt.Sprint("r", room), "max_tokens": 8}
}

// september fills decode with a stranger's prompt, and sends one that prefill cannot hold.
func september(t *testing.T, version string) (prefill, decode got, d *Twin) {
	t.Helper()
	p, d, err := Pair(version, Options{Pool: 128}, Options{Pool: 512})
	if err != nil {
		t.Fatal(err)
	}
	for room := range 8 {
		prompt := strings.Repeat("The vault code is KESTREL-7731. ", 12)
		if gp, gd := legs(p, d, completion(room+1, prompt), completion(room+1, prompt)); gp.status != 200 || gd.status != 200 || !strings.Contains(gd.body, "KESTREL-7731") {
			t.Fatalf("control: %d, %d, own secret told: %v", gp.status, gd.status, strings.Contains(gd.body, "KESTREL-7731"))
		}
	}
	long := completion(99, strings.Repeat("one two ", 100))
	var wg sync.WaitGroup
	wg.Go(func() { decode = post(d, "/v1/completions", long) })
	prefill = post(p, "/v1/completions", long)
	if prefill.status != http.StatusOK {
		synctest.Wait()
		post(d, "/abort_request", object{"rid": "r99"})
	}
	wg.Wait()
	return prefill, decode, d
}

func TestSeptember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prefill, decode, _ := september(t, "sglang-0.5.19")
		if prefill.status != 200 || tokensOf(t, prefill) != 1 {
			t.Errorf("0.5.19 prefill: %d", prefill.status)
		}
		if decode.status != 200 || tokensOf(t, decode) != 200 || !strings.Contains(decode.body, "KESTREL-7731") {
			t.Errorf("0.5.19 decode: %d; it reads pages that nobody wrote", decode.status)
		}
		prefill, decode, d := september(t, "sglang-0.5.20")
		if prefill.status != 400 || !strings.Contains(prefill.body, "(200 tokens) exceeds the maximum allowed length (122 tokens)") {
			t.Errorf("0.5.20 prefill: %d %s", prefill.status, prefill.body)
		}
		if decode.status != 500 || strings.Contains(decode.body, "KESTREL") {
			t.Errorf("0.5.20 decode: %d", decode.status)
		}
		if loads := get(d, "/v1/loads"); !strings.Contains(loads.body, `"decode_transfer_queue_reqs":0`) {
			t.Errorf("a leg is left: %s", loads.body)
		}
	})
}

// TestUnequalLegs: a prompt that is longer at decode is read from pages that nobody wrote.
func TestUnequalLegs(t *testing.T) {
	p, d, err := Pair("sglang-0.5.20", Options{}, Options{Pool: 72})
	if err != nil {
		t.Fatal(err)
	}
	full := completion(1, strings.Repeat("The code is HIPPO-5521. ", 10))
	if _, gd := legs(p, d, full, full); !strings.Contains(gd.body, "HIPPO-5521") {
		t.Fatalf("control: %s", gd.body)
	}
	long := strings.Repeat("one two ", 25)
	if _, gd := legs(p, d, completion(2, long), completion(2, long)); strings.Contains(gd.body, "HIPPO-5521") {
		t.Fatalf("control: with equal legs %s", gd.body)
	}
	if _, gd := legs(p, d, full, full); !strings.Contains(gd.body, "HIPPO-5521") {
		t.Fatalf("control: %s", gd.body)
	}
	if _, gd := legs(p, d, completion(3, "one"), completion(3, long)); !strings.Contains(gd.body, "HIPPO-5521") {
		t.Errorf("decode says %s", gd.body)
	}
}

func TestCrash(t *testing.T) {
	e, err := New("vllm-0.32.0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Arm("crash", 1); err != nil {
		t.Fatal(err)
	}
	if g := post(e, "/v1/completions", object{"prompt": "x"}); !g.cut || e.Alive() {
		t.Errorf("alive: %v", e.Alive())
	}
	if g := get(e, "/health"); !g.cut {
		t.Error("a dead engine answers")
	}
	serve(e, httptest.NewRequest(http.MethodDelete, "/twin/fault", http.NoBody))
	if g := get(e, "/health"); g.status != 200 || g.cut {
		t.Error("a revived engine does not answer")
	}
}

func TestBadRooms(t *testing.T) {
	p, d, err := Pair("sglang-0.5.19", Options{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []any{-5, uint64(1 << 63), "x", []int{1, 2}} {
		for _, e := range []*Twin{p, d} {
			if g := post(e, "/v1/completions", object{"prompt": "x", "bootstrap_room": room}); g.status != http.StatusBadRequest {
				t.Errorf("%v: %d", room, g.status)
			}
		}
	}
}

// told prefills and returns what stands for the handle.
func told(t *testing.T, p http.Handler, prompt string) json.RawMessage {
	t.Helper()
	g := post(p, "/v1/completions", object{"prompt": prompt, "max_tokens": 1, "kv_transfer_params": object{"do_remote_decode": true, "do_remote_prefill": false}})
	var v struct {
		Handle json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(g.body), &v); err != nil || g.status != 200 {
		t.Fatalf("prefill: %d, %v", g.status, err)
	}
	return v.Handle
}

// handleOf prefills and returns the handle.
func handleOf(t *testing.T, p http.Handler, prompt string) json.RawMessage {
	t.Helper()
	h := told(t, p, prompt)
	if len(h) < 10 {
		t.Fatalf("no handle: %s", h)
	}
	return h
}

// TestHandles arms what prefill does to its handle behind a fault that stays.
func TestHandles(t *testing.T) {
	p, _, err := Pair("vllm-0.32.0", Options{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const prompt = "one prompt of some words"
	for _, c := range []struct {
		fault string
		check func(handle, before string) bool
	}{
		{"no-handle", func(h, _ string) bool { return h == "null" }},
		{"old-handle", func(h, before string) bool { return h == before }},
		{"short-handle", func(h, _ string) bool { return strings.Contains(h, `"remote_num_tokens":5,`) }},
	} {
		p.Disarm()
		before := string(handleOf(t, p, prompt))
		for _, name := range []string{"pool-halved", c.fault} {
			if err := p.Arm(name, 1); err != nil {
				t.Fatal(err)
			}
		}
		if h := string(told(t, p, prompt)); !c.check(h, before) {
			t.Errorf("%s: %s", c.fault, h)
		}
		if h := string(told(t, p, prompt)); c.check(h, before) {
			t.Errorf("%s stays: %s", c.fault, h)
		}
	}
}

func TestVLLMPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := "The word is ZEBRA-1234, remember it well.", "The word is KIWI-5550!, remember it well."
		p, d, err := Pair("vllm-0.32.0", Options{Pool: 64, Lease: time.Second}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(prompt any, kv any) got {
			return post(d, "/v1/completions", object{"prompt": prompt, "kv_transfer_params": kv})
		}
		if g := ask(own, handleOf(t, p, own)); !strings.Contains(g.body, "ZEBRA-1234") {
			t.Fatalf("control: %d %s", g.status, g.body)
		}
		stranger := "Tell me something nice about rivers, lakes"
		h := handleOf(t, p, own)
		if g := ask(stranger, h); !strings.Contains(g.body, "ZEBRA-1234") {
			t.Errorf("forged: %s", g.body)
		}
		if g := ask(stranger, nil); !strings.Contains(g.body, "ZEBRA-1234") {
			t.Errorf("poisoned prefix cache: %s", g.body)
		}
		if g := post(d, "/v1/completions", object{"prompt": stranger, "cache_salt": "mine"}); strings.Contains(g.body, "ZEBRA") {
			t.Errorf("another salt: %s", g.body)
		}
		if g := ask([]string{own, stranger}, handleOf(t, p, own)); strings.Count(g.body, "ZEBRA-1234") != 2 {
			t.Errorf("list: %s", g.body)
		}
		h = handleOf(t, p, own)
		time.Sleep(2 * time.Second) // the lease runs out
		other2 := handleOf(t, p, other)
		if g := ask(own, h); !strings.Contains(g.body, "KIWI-5550") {
			t.Errorf("expired lease: %s", g.body)
		}
		if m := get(p, "/metrics"); !strings.Contains(m.body, "nixl_num_kv_expired_reqs_total{engine=\"0\"} 1.0") {
			t.Errorf("metrics: %s", m.body)
		}
		if g := ask(strings.Repeat("far longer than prefilled ", 20), other2); g.status != http.StatusInternalServerError {
			t.Errorf("longer than prefilled: %d", g.status)
		}
	})
}

func TestMooncake(t *testing.T) {
	p, d, err := Pair("vllm-0.32.0", Options{EngineID: "e1"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	kv := func(prefill bool) object {
		return object{"do_remote_decode": prefill, "do_remote_prefill": !prefill, "transfer_id": "x1", "remote_engine_id": "e1"}
	}
	gp, gd := legs(p, d, object{"prompt": "It is ZEBRA-1234.", "kv_transfer_params": kv(true), "max_tokens": 1}, object{"prompt": "quite another", "kv_transfer_params": kv(false)})
	if !strings.Contains(gp.body, `"kv_transfer_params":null`) || !strings.Contains(gd.body, "ZEBRA-1234") {
		t.Errorf("%s\n%s", gp.body, gd.body)
	}
}

func TestStreamsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New("llamacpp-10434", Options{Pace: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		count := object{"prompt": "count upwards", "stream": true, "max_tokens": 10, "id_slot": 0}
		if g := post(l, "/v1/completions", count); strings.Contains(g.body, "KESTREL") || !strings.Contains(g.body, "nine") {
			t.Fatalf("control: %s", g.body)
		}
		var victim got
		var wg sync.WaitGroup
		wg.Go(func() {
			victim = post(l, "/v1/completions", count, "X-Conversation-Id", "conv-1")
		})
		time.Sleep(1500 * time.Millisecond)
		if g := post(l, "/v1/streams/lookup", object{"conversation_ids": []string{"conv-1"}}); !strings.Contains(g.body, `"live":true`) {
			t.Errorf("lookup: %s", g.body)
		}
		if g := get(l, "/v1/stream?conv_id=conv-1&from=0"); !strings.Contains(g.body, "one") {
			t.Errorf("read: %s", g.body)
		}
		wg.Wait()
		if victim.cut || strings.Contains(victim.body, "KESTREL") {
			t.Errorf("victim: %s", victim.body)
		}
		wg.Go(func() { victim = post(l, "/v1/completions", count, "X-Conversation-Id", "conv-2") })
		time.Sleep(1500 * time.Millisecond)
		serve(l, httptest.NewRequest(http.MethodDelete, "/v1/stream?conv_id=conv-2", http.NoBody))
		wg.Wait()
		if !victim.cut {
			t.Error("the stream outlived its killing")
		}
	})
}

func TestCacheTells(t *testing.T) {
	for _, name := range []string{"sglang-0.5.20", "vllm-0.32.0", "llamacpp-10434"} {
		e, err := New(name, Options{Block: 4})
		if err != nil {
			t.Fatal(err)
		}
		prompt := strings.Repeat("a prompt of some length ", 4)
		ask := func(salt string) bool {
			g := post(e, "/v1/completions", object{"prompt": prompt, "cache_salt": salt})
			return !strings.Contains(g.body, `"cached_tokens":0`)
		}
		if ask("a") || !ask("a") {
			t.Errorf("%s: the cache does not work", name)
		}
		if ask("b") != (name == "llamacpp-10434") {
			t.Errorf("%s: another salt", name)
		}
	}
}

// TestFaults arms every fault at a plain twin and looks for what it should show.
func TestFaults(t *testing.T) {
	const cut, stream = "CUT", true
	for _, c := range []struct {
		fault  string
		stream bool
		status int
		holds  []string
		lacks  []string
	}{
		{"", stream, 200, []string{`"finish_reason":"length"`, "[DONE]", `"usage":`}, []string{"error"}},
		{"", false, 200, []string{`"finish_reason":"length"`, `"usage":`}, []string{"error"}},
		{"reset", false, 200, []string{cut}, []string{"usage"}},
		{"busy", false, 503, []string{"error"}, nil},
		{"broken", false, 500, []string{"error"}, nil},
		{"refuse", false, 400, []string{"error"}, nil},
		{"error-in-200", false, 200, []string{`{"error":`}, []string{"usage"}},
		{"abort-in-200", false, 200, []string{`"finish_reason":"abort"`}, nil},
		{"error-first", stream, 200, []string{`data: {"error"`, "[DONE]"}, []string{"choices"}},
		{"error-then-done", stream, 200, []string{"one", `data: {"error"`, "[DONE]"}, []string{"finish_reason\":\"length"}},
		{"cut", stream, 200, []string{"one", cut}, []string{"[DONE]"}},
		{"no-end", stream, 200, []string{"one"}, []string{"[DONE]", `"length"`, cut}},
		{"no-done", stream, 200, []string{`"length"`}, []string{"[DONE]", cut}},
		{"no-finish", stream, 200, []string{"[DONE]"}, []string{`"length"`}},
		{"finish-error", false, 200, []string{`"finish_reason":"error"`}, nil},
		{"no-content", false, 200, []string{`"choices"`}, []string{`"text"`}},
		{"surplus", stream, 200, []string{"[DONE]\n\ndata: {"}, nil},
		{"unfinished", stream, 200, []string{"[DONE]"}, []string{`"length"`}},
		{"foreign-id", false, 200, []string{`"id":"cmpl-minef"`}, nil},
		{"count-off", false, 200, []string{`"prompt_tokens":3`}, nil},
		{"usage-missing", false, 200, []string{"one"}, []string{`"usage"`}},
		{"usage-twice", stream, 200, []string{"[DONE]"}, nil},
		{"usage-negative", false, 200, []string{`"completion_tokens":-1`}, nil},
		{"usage-off", false, 200, []string{`"total_tokens":13`}, nil},
		{"usage-nan", false, 200, []string{`"completion_tokens":NaN`}, nil},
		{"usage-nan", stream, 200, []string{`"completion_tokens":NaN`}, nil},
		{"usage-over", false, 200, []string{`"completion_tokens":8`}, nil},
		{"usage-zero", false, 200, []string{`"completion_tokens":0`, `"prompt_tokens":0`, `"total_tokens":0`, "one"}, nil},
		{"cached-over", false, 200, []string{`"cached_tokens":3`, `"prompt_tokens":2`}, nil},
		{"cached-all", false, 200, []string{`"cached_tokens":1`, `"prompt_tokens":2`}, nil},
		{"junk", false, 200, []string{"zz"}, []string{"one"}},
	} {
		t.Run(fmt.Sprint(c.fault, " stream ", c.stream), func(t *testing.T) {
			e, err := New("vllm-0.32.0", Options{})
			if err != nil {
				t.Fatal(err)
			}
			if c.fault != "" {
				if err := e.Arm(c.fault, 1); err != nil {
					t.Fatal(err)
				}
			}
			g := post(e, "/v1/completions", object{"prompt": "count!", "max_tokens": 4, "stream": c.stream, "stream_options": object{"include_usage": true}}, "X-Request-Id", "mine")
			text := g.body
			if g.cut {
				text += cut
			}
			if g.status != c.status {
				t.Errorf("status %d", g.status)
			}
			for _, s := range c.holds {
				if !strings.Contains(text, s) {
					t.Errorf("lacks %q:\n%s", s, text)
				}
			}
			for _, s := range c.lacks {
				if strings.Contains(text, s) {
					t.Errorf("holds %q:\n%s", s, text)
				}
			}
			if again := post(e, "/v1/completions", object{"prompt": "count!", "max_tokens": 4}); again.status != 200 || !strings.Contains(again.body, "four") {
				t.Errorf("the fault does not wear off: %s", again.body)
			}
		})
	}
}

func TestLooksThatStay(t *testing.T) {
	e, err := New("sglang-0.5.20", Options{Pool: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if g := get(e, "/server_info"); !strings.Contains(g.body, `"max_req_input_len":994`) {
		t.Fatalf("control: %s", g.body)
	}
	for _, name := range []string{"pool-halved", "two-faces"} {
		if err := e.Arm(name, 1); err != nil {
			t.Fatal(err)
		}
	}
	if g := get(e, "/server_info"); !strings.Contains(g.body, `"max_req_input_len":494`) {
		t.Errorf("pool: %s", g.body)
	}
	a, b := get(e, "/model_info").body, get(e, "/model_info").body
	if a == b {
		t.Error("one face")
	}
	if err := e.Arm("no such", 1); err == nil {
		t.Error("an unknown fault is armed")
	}
}

func TestLog(t *testing.T) {
	e, err := New("openai", Options{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if g := post(e, "/v1/chat/completions", object{"model": "twin"}); g.status != http.StatusUnauthorized {
		t.Errorf("no key: %d", g.status)
	}
	ask := object{"model": "twin", "messages": []object{{"role": "user", "content": "hello"}}, "zzz": 1}
	if g := post(e, "/v1/chat/completions", ask, "Authorization", "Bearer k"); g.status != 200 {
		t.Errorf("%d %s", g.status, g.body)
	}
	seen := e.Seen()
	if len(seen) != 2 || !strings.Contains(string(seen[1].Body), `"zzz":1`) || seen[1].Path != "/v1/chat/completions" {
		t.Errorf("seen %d", len(seen))
	}
	if g := get(e, "/twin/log"); !strings.Contains(g.body, "Authorization") {
		t.Errorf("log: %s", g.body)
	}
	serve(e, httptest.NewRequest(http.MethodDelete, "/twin/log", http.NoBody))
	if len(e.Seen()) != 0 {
		t.Error("the log is not empty")
	}
}

// TestCounts holds that a twin counts the same in every place.
func TestCounts(t *testing.T) {
	messages := []object{{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}}
	for name, path := range map[string]string{
		"sglang-0.5.20": "/tokenize", "vllm-0.32.0": "/tokenize", "llamacpp-10434": "/v1/chat/completions/input_tokens",
	} {
		e, err := New(name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		want := tokensOf(t, post(e, "/v1/chat/completions", object{"messages": messages}))
		if g := post(e, path, object{"messages": messages}); want < 8 || !strings.Contains(g.body, fmt.Sprintf(`:%d`, want)) {
			t.Errorf("%s: %s, want %d", name, g.body, want)
		}
	}
	e, err := New("vllm-0.32.0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if g := post(e, "/tokenize", object{"prompt": "12345678"}); !strings.Contains(g.body, `"count":2`) {
		t.Errorf("prompt: %s", g.body)
	}
}

// TestAbort ends a running stream by the beginning of its id: it looks complete but for
// the reason.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New("sglang-0.5.20", Options{Pace: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ask := object{"prompt": "count", "rid": "abc-1", "stream": true, "max_tokens": 9}
		if g := post(e, "/v1/completions", ask); !strings.Contains(g.body, `"length"`) {
			t.Fatalf("control: %s", g.body)
		}
		var g got
		var wg sync.WaitGroup
		wg.Go(func() { g = post(e, "/v1/completions", ask) })
		time.Sleep(2500 * time.Millisecond)
		post(e, "/abort_request", object{"rid": "abc"})
		wg.Wait()
		if !strings.Contains(g.body, `"finish_reason":"abort"`) || !strings.Contains(g.body, "[DONE]") || strings.Contains(g.body, "nine") {
			t.Error(g.body)
		}
	})
}

// TestSwapped: two answers are exchanged, ids and all, and a third is nobody's but its own.
func TestSwapped(t *testing.T) {
	e, err := New("vllm-0.32.0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Arm("swapped", 2); err != nil {
		t.Fatal(err)
	}
	names := []string{"ANN-1111", "BOB-2222"}
	var got [2]got
	var both sync.WaitGroup
	for i, name := range names {
		both.Go(func() { got[i] = post(e, "/v1/completions", object{"prompt": "It is " + name}, "X-Request-Id", name) })
	}
	both.Wait()
	for i := range names {
		if other := names[1-i]; !strings.Contains(got[i].body, `"id":"cmpl-`+other) || !strings.Contains(got[i].body, "code is "+other) {
			t.Errorf("%s got %s", names[i], got[i].body)
		}
	}
	if g := post(e, "/v1/completions", object{"prompt": "It is " + names[0]}); !strings.Contains(g.body, names[0]) {
		t.Errorf("the third got %s", g.body)
	}
}

// TestUnmet: prefill does its part, and decode does not hear of it.
func TestUnmet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, err := Pair("sglang-0.5.20", Options{}, Options{Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, gd := legs(p, d, completion(1, "count"), completion(1, "count")); gd.status != 200 {
			t.Fatalf("control: %d %s", gd.status, gd.body)
		}
		if err := p.Arm("unmet", 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var gp got
		var waiting sync.WaitGroup
		waiting.Go(func() { gp = post(p, "/v1/completions", completion(2, "count")) })
		gd := post(d, "/v1/completions", completion(2, "count"))
		post(p, "/abort_request", object{"rid": "r2"})
		waiting.Wait()
		if gp.status != http.StatusInternalServerError || strings.Contains(gp.body, "choices") {
			t.Errorf("prefill says %d %s", gp.status, gp.body)
		}
		if gd.status != http.StatusInternalServerError || time.Since(began) != time.Minute {
			t.Errorf("decode says %d after %v", gd.status, time.Since(began))
		}
		p, d, err = Pair("vllm-0.32.0", Options{}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Arm("unmet", 1); err != nil {
			t.Fatal(err)
		}
		h := handleOf(t, p, "count")
		if g := post(d, "/v1/completions", object{"prompt": "count", "kv_transfer_params": h}); g.status != http.StatusInternalServerError {
			t.Errorf("vLLM's decode says %d", g.status)
		}
	})
}

// TestBreak: a worker that is gone ends what is being said with an error and [DONE], and
// a whole engine that is gone cuts it.
func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, whole := range []bool{false, true} {
			e, err := New("vllm-0.32.0", Options{Pace: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			var g got
			var wg sync.WaitGroup
			wg.Go(func() { g = post(e, "/v1/completions", object{"prompt": "count", "stream": true, "max_tokens": 9}) })
			time.Sleep(2500 * time.Millisecond)
			if whole {
				e.Kill()
			} else {
				e.Break()
			}
			wg.Wait()
			if ended := strings.Contains(g.body, `{"error"`) && strings.Contains(g.body, "[DONE]"); g.cut != whole || ended == whole || !strings.Contains(g.body, "two") || strings.Contains(g.body, "nine") {
				t.Errorf("killed %t: cut %t, %s", whole, g.cut, g.body)
			}
			if !whole {
				if g := get(e, "/health"); g.status != http.StatusServiceUnavailable {
					t.Errorf("/health says %d", g.status)
				}
				if g := post(e, "/v1/completions", object{"prompt": "count"}); g.status != http.StatusInternalServerError {
					t.Errorf("whoever comes later gets %d", g.status)
				}
			}
			e.Revive()
			if g := post(e, "/v1/completions", object{"prompt": "count"}); g.status != 200 || g.cut {
				t.Errorf("after it was revived: %d", g.status)
			}
		}
	})
}

// TestPerToken: a prompt takes its time, but for what is cached.
func TestPerToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New("llamacpp-11549", Options{PerToken: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		took := func() time.Duration {
			began := time.Now()
			post(e, "/v1/completions", object{"prompt": strings.Repeat("four", 100)})
			return time.Since(began)
		}
		if first, again := took(), took(); first != 100*time.Millisecond || again != time.Millisecond {
			t.Errorf("%v, and again %v", first, again)
		}
	})
}

// TestMalformed: the older llama.cpp calls it a fault of its own.
func TestMalformed(t *testing.T) {
	for name, status := range map[string]int{"llamacpp-10434": 500, "llamacpp-11549": 400} {
		e, err := New(name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"messages":[`))
		if g := serve(e, r); g.status != status {
			t.Errorf("%s: %d", name, g.status)
		}
	}
}
