package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// router is somebody's router, in front of two of our workers.
type router struct {
	name, how string
	install   string // argument of install.sh
	// command makes its arguments; program is its own or its interpreter.
	command func(facts map[string]string, r routerPorts) (program string, args []string)
	// scalar: it gives a request one room, however many answers were asked for; such
	// requests are refused.
	scalar bool
	// plain: it speaks to one worker, and knows nothing of pairs.
	plain bool
	// workers, if set, is the path that tells what it takes the workers for.
	workers string
}

type routerPorts struct{ own, metrics, prefill, decode, bootstrap int }

// routersPeer is routers of other projects in front of our workers.
func routersPeer() peer {
	p := peer{name: "routers", title: "Other routers in front of two Bulkhead workers", alone: true, prepare: "routers/install.sh"}
	for _, r := range routers() {
		p.parts = append(p.parts, part{name: r.name, run: r.run})
	}
	return p
}

func routers() []router {
	pd := func(program string, mini bool) func(map[string]string, routerPorts) (string, []string) {
		return func(facts map[string]string, r routerPorts) (string, []string) {
			args := []string{"launch"}
			if mini {
				args = append(args, "--mini-lb")
			}
			args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(r.own), "--pd-disaggregation",
				"--prefill", at(r.prefill), strconv.Itoa(r.bootstrap), "--decode", at(r.decode), "--policy", "round_robin")
			if !mini {
				args = append(args, "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(r.metrics), "--worker-startup-check-interval", "1")
			}
			return facts[program], args
		}
	}
	return []router{
		{name: "sglang-router", how: "sglang-router 0.3.2 of PyPI, prefill and decode", install: "sglang-router", command: pd("PROGRAM", false)},
		{name: "smg", how: "smg 1.13.0 of PyPI, prefill and decode", install: "smg", command: pd("PROGRAM", false), workers: "/workers"},
		{name: "mini_lb", how: "the small balancer inside sglang-router 0.3.2, prefill and decode; it does not look at prefill's status", install: "sglang-router", command: pd("PROGRAM", true), scalar: true},
		{name: "vllm-router", how: "vllm-router 0.1.17 of PyPI, plain, in front of the decode worker", install: "vllm-router", plain: true,
			command: func(facts map[string]string, r routerPorts) (string, []string) {
				return facts["PROGRAM"], []string{"--host", "127.0.0.1", "--port", strconv.Itoa(r.own), "--worker-urls", at(r.decode),
					"--policy", "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(r.metrics), "--worker-startup-check-interval", "1"}
			}},
	}
}

func at(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// Prompts with one answer. The canary is nobody's to see but the asker's.
const (
	routerWord   = "The code word of ship 7 is heliotrope. The code word of ship 7 is"
	routerAnswer = " heliotrope."
	routerCanary = "cnry-5e1f77a09c31"
	// routerPages is prefill's pool: less than decode's, so that there are prompts that only
	// prefill refuses.
	routerPages, routerDecodePages, routerPageSize = 16, 64, 16
)

// run starts two workers and the router, and goes through the points.
func (r router) run(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	facts, err := d.install(ctx, "routers/install.sh", r.install)
	if err != nil {
		return err
	}
	h := &routerRun{driver: d, router: r, s: s, facts: facts}
	if err := h.workers(ctx); err != nil {
		return err
	}
	if err := h.front(ctx); err != nil {
		return err
	}
	s.fact("%s", r.how)
	if r.plain {
		h.plainPoints(ctx)
	} else {
		h.points(ctx)
	}
	h.silence()
	held := 0
	for _, p := range h.told {
		if p.held {
			held++
		} else {
			s.fail("%s: %s", p.name, p.saw)
		}
		d.say("%-4s %s: %s", map[bool]string{true: "ok", false: "FAIL"}[p.held], p.name, p.saw)
		s.note("%s: %s", p.name, p.saw)
	}
	s.contract = fmt.Sprintf("%d of %d points hold", held, len(h.told))
	return nil
}

// routerRun is one router with its workers.
type routerRun struct {
	*driver
	router  router
	s       *section
	facts   map[string]string
	ports   routerPorts
	prefill *process
	decode  *process
	routes  *process
	told    []point
}

// point is one thing that was looked at.
type point struct {
	name, saw string
	held      bool
}

func (h *routerRun) point(name string, held bool, saw string, args ...any) {
	h.told = append(h.told, point{name, fmt.Sprintf(saw, args...), held})
}

// workers makes certificates and starts a prefill and a decode worker.
func (h *routerRun) workers(ctx context.Context) error {
	for _, p := range []*int{&h.ports.own, &h.ports.metrics, &h.ports.prefill, &h.ports.decode, &h.ports.bootstrap} {
		var err error
		if *p, err = h.port(); err != nil {
			return err
		}
	}
	certs := filepath.Join(h.dir, "certs")
	made, err := h.start("certs", h.bin, nil, "certs", "--dir", certs, "prefill/p0", "decode/d0")
	if err != nil {
		return err
	}
	<-made.done
	const common = "page_size: %d\npages: %d\nopen_dialect: true\nplain_data: true\ntls: {ca: \"file:%s/ca.pem\", cert: \"file:%s/%s.pem\", key: \"file:%s/%s.key\"}\n"
	for name, text := range map[string]string{
		"prefill": fmt.Sprintf("role: prefill\nname: p0\nlisten: 127.0.0.1:%d\nbootstrap: 127.0.0.1:%d\n"+common,
			h.ports.prefill, h.ports.bootstrap, routerPageSize, routerPages, certs, certs, "p0", certs, "p0"),
		"decode": fmt.Sprintf("role: decode\nname: d0\nlisten: 127.0.0.1:%d\npeers: [{label: \"127.0.0.1:%d\"}]\n"+common,
			h.ports.decode, h.ports.bootstrap, routerPageSize, routerDecodePages, certs, certs, "d0", certs, "d0"),
	} {
		if err := os.WriteFile(filepath.Join(h.dir, name+".yaml"), []byte(text), 0o600); err != nil {
			return fmt.Errorf("interop: write configuration: %w", err)
		}
	}
	if h.prefill, err = h.start("prefill", h.bin, nil, "worker", "--config", filepath.Join(h.dir, "prefill.yaml")); err != nil {
		return err
	}
	return h.startDecode(ctx)
}

func (h *routerRun) startDecode(ctx context.Context) error {
	var err error
	if h.decode, err = h.start("decode", h.bin, nil, "worker", "--config", filepath.Join(h.dir, "decode.yaml")); err != nil {
		return err
	}
	return h.ready(ctx, h.decode, at(h.ports.decode)+"/server_info", 30*time.Second)
}

// front starts the router and waits until it answers.
func (h *routerRun) front(ctx context.Context) error {
	program, args := h.router.command(h.facts, h.ports)
	var err error
	if h.routes, err = h.start("router", program, nil, args...); err != nil {
		return err
	}
	if err := h.ready(ctx, h.routes, at(h.ports.own)+"/health", 60*time.Second); err != nil || h.router.plain {
		return err
	}
	began := time.Now()
	for {
		got := h.ask(ctx, "/v1/completions", completion(routerWord))
		if got.status == http.StatusOK && got.text() == routerAnswer {
			h.say("answers %.1f s after it was healthy", time.Since(began).Seconds())
			return nil
		}
		if ctx.Err() != nil || time.Since(began) > 60*time.Second || !h.routes.alive() {
			return fmt.Errorf("interop: %s does not come to answer: status %d\n      %s", h.router.name, got.status, h.routes.tail())
		}
		wait(ctx, 200*time.Millisecond)
	}
}

// wait waits for a time or for the end of ctx.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func completion(prompt any) map[string]any {
	return map[string]any{"model": "recall", "prompt": prompt, "max_tokens": len(routerAnswer), "temperature": 0}
}

// routed is an answer of a router.
type routed struct {
	status int
	body   string
	err    error
}

// ask posts a body to the router.
func (h *routerRun) ask(ctx context.Context, path string, body any) routed {
	return h.post(ctx, at(h.ports.own)+path, body)
}

func (h *routerRun) post(ctx context.Context, url string, body any) routed {
	data, err := json.Marshal(body)
	if err != nil {
		return routed{err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return routed{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.http.Do(req)
	if err != nil {
		return routed{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return routed{resp.StatusCode, string(b), err}
}

// texts is what an answer, or a stream, says in each choice.
func (r routed) texts() map[int]string {
	out := map[int]string{}
	for _, part := range strings.Split(r.body, "\n") {
		part = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(part), "data:"))
		var v struct {
			Choices []struct {
				Index          int
				Text           string
				Message, Delta struct{ Content string }
			}
			Text string
		}
		var list []struct{ Text string }
		switch {
		case json.Unmarshal([]byte(part), &v) == nil:
			for _, c := range v.Choices {
				out[c.Index] += c.Text + c.Message.Content + c.Delta.Content
			}
			if v.Text != "" {
				out[0] = v.Text
			}
		case json.Unmarshal([]byte(part), &list) == nil:
			for i, x := range list {
				out[i] = x.Text
			}
		}
	}
	return out
}

func (r routed) text() string { return r.texts()[0] }

// whole says whether an answer looks complete: a stream with its end mark and no error.
func (r routed) whole(stream bool) bool {
	return r.err == nil && r.status == http.StatusOK && (!stream || strings.Contains(r.body, "[DONE]")) && !strings.Contains(r.body, `"error"`)
}

// points goes through what must hold behind a router that knows pairs.
func (h *routerRun) points(ctx context.Context) {
	if h.router.workers != "" {
		resp := h.get(ctx, at(h.ports.own)+h.router.workers)
		n := strings.Count(strings.ReplaceAll(resp.body, " ", ""), `"runtime_type":"sglang"`)
		h.point("it takes both workers for SGLang", n == 2, "%d of 2", n)
	}
	h.answers(ctx)
	h.legsAgree(ctx)
	h.sameRoom(ctx)
	h.overLong(ctx)
	h.fields(ctx)
	h.leaves(ctx)
	h.decodeDies(ctx)
	h.decodeGone(ctx)
}

func (h *routerRun) get(ctx context.Context, url string) routed {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return routed{err: err}
	}
	resp, err := h.http.Do(req)
	if err != nil {
		return routed{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return routed{resp.StatusCode, string(b), err}
}

// answers asks in every form that routers pass on.
func (h *routerRun) answers(ctx context.Context) {
	other := strings.NewReplacer("7", "8", "heliotrope", "periwinkle").Replace(routerWord)
	chat := map[string]any{"model": "recall", "messages": []map[string]any{{"role": "user", "content": routerWord}}, "max_tokens": len(routerAnswer), "temperature": 0}
	with := func(m map[string]any, more map[string]any) map[string]any {
		out := map[string]any{}
		for _, x := range []map[string]any{m, more} {
			for k, v := range x {
				out[k] = v
			}
		}
		return out
	}
	ids := func(s string) []int {
		var out []int
		for _, c := range []byte(s) {
			out = append(out, int(c))
		}
		return out
	}
	params := map[string]any{"max_new_tokens": len(routerAnswer), "temperature": 0}
	const second = " periwinkle."
	for _, c := range []struct {
		name, path string
		body       map[string]any
		want       []string
		stream     bool
	}{
		{"chat", "/v1/chat/completions", chat, []string{routerAnswer}, false},
		{"chat, streamed", "/v1/chat/completions", with(chat, map[string]any{"stream": true}), []string{routerAnswer}, true},
		{"chat with n=2", "/v1/chat/completions", with(chat, map[string]any{"n": 2}), []string{routerAnswer, routerAnswer}, false},
		{"three prompts", "/v1/completions", completion([]string{routerWord, other, routerWord}), []string{routerAnswer, second, routerAnswer}, false},
		{"/generate", "/generate", map[string]any{"text": routerWord, "sampling_params": params}, []string{routerAnswer}, false},
		{"/generate with two lists of ids", "/generate", map[string]any{"input_ids": [][]int{ids(routerWord), ids(other)}, "sampling_params": params}, []string{routerAnswer, second}, false},
	} {
		got := h.ask(ctx, c.path, c.body)
		texts := got.texts()
		held := got.whole(c.stream) && len(texts) == len(c.want)
		for i, want := range c.want {
			held = held && texts[i] == want
		}
		if h.router.scalar && len(c.want) > 1 && c.path != "/generate" {
			held = got.text() == "" && got.status >= 400 && got.status < 500
		}
		h.point(c.name, held, "status %d, %d answers", got.status, len(texts))
	}
}

// ended reads from a worker's log which attempts it served, and their prompt tokens. An
// attempt follows from its room, so that equal attempts are equal rooms.
func ended(p *process) map[string]string {
	b, _ := os.ReadFile(p.log)
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		var attempt, code, prompt string
		for _, f := range strings.Fields(line) {
			for name, into := range map[string]*string{"attempt=": &attempt, "code=": &code, "prompt=": &prompt} {
				if v, ok := strings.CutPrefix(f, name); ok {
					*into = v
				}
			}
		}
		if strings.Contains(line, "msg=attempt_ended") && code == "ok" {
			out[attempt] = prompt
		}
	}
	return out
}

func (h *routerRun) legsAgree(ctx context.Context) {
	p, d := ended(h.prefill), ended(h.decode)
	for began := time.Now(); len(p) != len(d) && time.Since(began) < 3*time.Second; p, d = ended(h.prefill), ended(h.decode) {
		wait(ctx, 50*time.Millisecond) // logs are written beside the work
	}
	same := 0
	for a, n := range d {
		if p[a] == n {
			same++
		}
	}
	h.point("room and prompt tokens in both workers' logs", len(d) > 5 && same == len(d) && len(p) == len(d), "%d attempts at decode, %d the same at prefill", len(d), same)
}

// sameRoom sends one room twice to each worker, as a router does that sends a leg again.
func (h *routerRun) sameRoom(ctx context.Context) {
	leg := func(prompt string) map[string]any {
		body := completion(prompt)
		body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"] = "127.0.0.1", h.ports.bootstrap, int64(1)<<62+7
		return body
	}
	done := make(chan routed, 1)
	go func() { done <- h.post(ctx, at(h.ports.prefill)+"/v1/completions", leg(routerWord)) }()
	first := h.post(ctx, at(h.ports.decode)+"/v1/completions", leg(routerWord))
	<-done
	refused := 0
	for _, port := range []int{h.ports.prefill, h.ports.decode} {
		if got := h.post(ctx, at(port)+"/v1/completions", leg("something else")); got.status == http.StatusConflict && got.text() == "" {
			refused++
		}
	}
	h.point("the same room again", first.text() == routerAnswer && refused == 2, "the first is served, %d of 2 later legs are refused", refused)
}

// overLong asks with a prompt that prefill refuses and decode alone would take.
func (h *routerRun) overLong(ctx context.Context) {
	prompt := routerCanary + strings.Repeat(" over and over", routerPages*routerPageSize/10)
	for _, stream := range []bool{false, true} {
		body := completion(prompt)
		body["stream"] = stream
		got := h.ask(ctx, "/v1/completions", body)
		h.point(fmt.Sprintf("over-long for prefill, stream %v", stream), got.text() == "" && !got.whole(stream), "status %d, no text", got.status)
	}
	got := h.ask(ctx, "/v1/completions", completion(routerWord))
	h.point("the next request", got.text() == routerAnswer, "status %d", got.status)
}

// fields sends what clients must not command the workers with.
func (h *routerRun) fields(ctx context.Context) {
	names := []string{
		"kv_transfer_params", "ec_transfer_params", "disaggregated_params", "disagg_prefill_resp", "transfer_id", "cache_hit_threshold", "session_params", "session_id",
		"custom_logit_processor", "custom_params", "input_embeds", "image_data", "video_data", "audio_data", "modalities", "lora_path", "lora_id",
		"return_hidden_states", "return_routed_experts", "extra_key", "cache_salt", "priority", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
		"bootstrap_pair_key", "bootstrap_host", "bootstrap_port", "bootstrap_room", "decode_tp_size", "return_logprob", "logprob_start_len", "top_logprobs_num",
		"token_ids_logprob", "return_text_in_logprobs", "id_slot", "cache_prompt", "vllm_xargs", "nvext", "extra_body", "request_id", "rid", "conversation_id",
		"previous_response_id", "background", "log_metrics", "no_logs", "return_bytes", "chat_template", "chat_template_kwargs", "continue_final_message",
		"stream_reasoning", "skip_special_tokens", "spaces_between_special_tokens", "ignore_eos", "no_stop_trim", "min_tokens",
	}
	served, refused := 0, 0
	for _, name := range names {
		for _, value := range []any{map[string]any{"do_remote_prefill": true, "remote_host": "127.0.0.1", "prompt_token_ids": []int{1}}, 7, "x", true} {
			body := completion(routerWord)
			body[name] = value
			switch got := h.ask(ctx, "/v1/completions", body); {
			case got.text() == routerAnswer:
				served++
			case got.status >= 400 && got.text() == "":
				refused++
			default:
				h.point("the field "+name, false, "status %d, another answer", got.status)
			}
		}
	}
	h.point(fmt.Sprintf("%d fields of clients, four values each", len(names)), served+refused == 4*len(names), "%d answers as without it, %d refused, none with an effect", served, refused)
}

// free is how long it takes until both workers have every page free.
func (h *routerRun) free(ctx context.Context, limit time.Duration) (time.Duration, bool) {
	began := time.Now()
	for time.Since(began) < limit && ctx.Err() == nil {
		all := true
		for _, port := range []int{h.ports.prefill, h.ports.decode} {
			var v struct {
				Free  int `json:"pages_free"`
				Total int `json:"pages_total"`
			}
			got := h.get(ctx, at(port)+"/server_info")
			all = all && json.Unmarshal([]byte(got.body), &v) == nil && v.Total > 0 && v.Free == v.Total
		}
		if all {
			return time.Since(began), true
		}
		wait(ctx, 2*time.Millisecond)
	}
	return 0, false
}

// long is a request whose stream is not over at once.
func long() map[string]any {
	body := completion("a b c d e f g h i j k l m n o p " + routerWord)
	body["max_tokens"], body["stream"] = 700, true
	return body
}

// begin starts a stream and returns it behind its first bytes.
func (h *routerRun) begin(ctx context.Context, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at(h.ports.own)+"/v1/completions", bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.http.Do(req)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 64)); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// leaves starts a stream and leaves it.
func (h *routerRun) leaves(ctx context.Context) {
	leave, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := h.begin(leave, long())
	if err != nil {
		h.point("the client leaves", false, "the stream did not begin")
		return
	}
	cancel()
	resp.Body.Close()
	took, ok := h.free(ctx, 5*time.Second)
	h.point("the client leaves", ok && took < time.Second, "every page of both workers is free after %d ms", took.Milliseconds())
}

// decodeDies kills decode in the middle of a stream, and starts it again.
func (h *routerRun) decodeDies(ctx context.Context) {
	resp, err := h.begin(ctx, long())
	if err != nil {
		h.point("decode is killed in a stream", false, "the stream did not begin")
		return
	}
	h.decode.kill()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	resp.Body.Close()
	got := routed{resp.StatusCode, string(b), err}
	saw := "the connection is cut"
	switch {
	case err != nil:
	case strings.Contains(got.body, `"error"`) && strings.Contains(got.body, "[DONE]"):
		saw = "the router ends the stream with an error event and [DONE]"
	case strings.Contains(got.body, `"error"`):
		saw = "an error event"
	default:
		saw = "a clean end without an end mark"
	}
	finished := strings.Contains(got.body, `"finish_reason":"`)
	h.point("decode is killed in a stream", !got.whole(true) && !finished, "%s, no finish reason", saw)
	h.back(ctx, "after decode was killed")
}

// back starts decode again and waits until the router serves.
func (h *routerRun) back(ctx context.Context, when string) {
	if err := h.startDecode(ctx); err != nil {
		h.point(when, false, "decode does not start")
		return
	}
	began := time.Now()
	for time.Since(began) < 90*time.Second && ctx.Err() == nil {
		if got := h.ask(ctx, "/v1/completions", completion(routerWord)); got.text() == routerAnswer && got.status == http.StatusOK {
			h.point(when, true, "the next answer is right")
			return
		}
		wait(ctx, 250*time.Millisecond)
	}
	h.point(when, false, "no answer in %.0f s", time.Since(began).Seconds())
}

// decodeGone asks while decode is away.
func (h *routerRun) decodeGone(ctx context.Context) {
	h.decode.stop(5 * time.Second)
	got := h.ask(ctx, "/v1/completions", completion(routerWord))
	h.point("decode has stopped", got.text() == "" && !got.whole(false), "status %d, no text", got.status)
	h.back(ctx, "after decode had stopped")
}

// plainPoints goes through what must hold behind a router that knows no pairs: the
// worker answers nobody who brings no hand-off.
func (h *routerRun) plainPoints(ctx context.Context) {
	for _, stream := range []bool{false, true} {
		body := completion(routerCanary + " " + routerWord)
		body["stream"] = stream
		got := h.ask(ctx, "/v1/completions", body)
		h.point(fmt.Sprintf("no hand-off, stream %v", stream), got.text() == "" && got.status >= 400, "status %d, no text", got.status)
	}
	// This router passes on whatever a client sends. A client that plays router itself gets
	// its own answer, and of a room that nobody prefilled nothing.
	leg := completion(routerWord)
	leg["bootstrap_host"], leg["bootstrap_port"], leg["bootstrap_room"] = "127.0.0.1", h.ports.bootstrap, int64(1)<<62+11
	done := make(chan routed, 1)
	go func() { done <- h.post(ctx, at(h.ports.prefill)+"/v1/completions", leg) }()
	got := h.ask(ctx, "/v1/completions", leg)
	<-done
	h.point("a client that brings both legs", got.text() == routerAnswer, "status %d, its own answer", got.status)
	theft := completion("another prompt altogether")
	theft["bootstrap_host"], theft["bootstrap_port"], theft["bootstrap_room"] = "127.0.0.1", h.ports.bootstrap, int64(1)<<62+13
	victim := completion(routerCanary + " " + routerWord)
	victim["bootstrap_host"], victim["bootstrap_port"], victim["bootstrap_room"] = theft["bootstrap_host"], theft["bootstrap_port"], theft["bootstrap_room"]
	go func() { done <- h.post(ctx, at(h.ports.prefill)+"/v1/completions", victim) }()
	got = h.ask(ctx, "/v1/completions", theft)
	<-done
	h.point("the room of a request that waits", got.text() == "" && got.status >= 400 && !strings.Contains(got.body, routerCanary), "status %d, no text", got.status)
}

// silence looks for prompts in every log.
func (h *routerRun) silence() {
	found := 0
	for _, p := range []*process{h.prefill, h.decode, h.routes} {
		b, err := os.ReadFile(p.log)
		if err != nil || bytes.Contains(b, []byte(routerCanary)) || bytes.Contains(b, []byte("heliotrope")) {
			found++
		}
	}
	b, err := os.ReadFile(h.routes.log)
	h.point("prompts in the logs at their default level", found == 0 && err == nil && len(b) > 0 || errors.Is(err, os.ErrNotExist), "none in 3 logs")
}
