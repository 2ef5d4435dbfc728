package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Roles of a leg.
const (
	legPrefill = "prefill"
	legDecode  = "decode"
	legPlain   = "plain"
)

// servedModel is the model that the legs say they serve.
const servedModel = "bench"

// leg is a worker that parses a request, as an engine must, and answers at once,
// always the same. It speaks as SGLang does, and says of itself what routers and the
// gateway ask; of a prefill leg vLLM's routers get a handle as well.
type leg struct {
	role    string
	about   map[string]string // answers to GET, by path
	bodies  sync.Pool         // *bytes.Buffer: of requests
	created int64
}

// manyTokens is what a leg says it can take: more than any prompt here.
const manyTokens = 1 << 26

func newLeg(role string) (*leg, error) {
	mode := any(role)
	if role == legPlain {
		mode = "null"
	}
	about := map[string]string{"/health": "", "/metrics": ""}
	for path, v := range map[string]any{
		"/server_info": map[string]any{
			"disaggregation_mode": mode, "served_model_name": servedModel, "model_path": "/models/" + servedModel, "tokenizer_path": "/models/" + servedModel,
			"context_length": manyTokens, "page_size": 64, "max_total_num_tokens": manyTokens, "max_req_input_len": manyTokens, "max_running_requests": 256,
			"version": "0.5.20", "tp_size": 1, "dp_size": 1, "pp_size": 1, "load_balance_method": "round_robin", "startup_time": map[string]any{role: time.Now().UnixNano()},
		},
		"/model_info": map[string]any{"model_path": "/models/" + servedModel, "served_model_name": servedModel, "is_generation": true, "model_type": "llama",
			"architectures": []string{"LlamaForCausalLM"}, "has_image_understanding": false, "has_audio_understanding": false},
		"/v1/models": map[string]any{"object": "list", "data": []any{map[string]any{"id": servedModel, "object": "model", "created": 1, "owned_by": "sglang",
			"root": servedModel, "parent": nil, "max_model_len": manyTokens}}},
		"/v1/loads": map[string]any{"version": "0.5.20", "dp_rank_count": 1, "loads": []any{map[string]any{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0,
			"num_used_tokens": 0, "max_total_num_tokens": manyTokens, "max_running_requests": 256, "token_usage": 0.0, "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": 0.0}}},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		about[path] = string(b)
	}
	return &leg{role: role, about: about, created: time.Now().Unix()}, nil
}

const (
	streamEvents = 32   // of the leg's stream, [DONE] included
	peekSize     = 1024 // bytes at each end of a request in which a leg looks for what commands it
	answerText   = "The answer is two hundred bytes long, as answers of a short chat are, and it is always the same one, for " +
		"what is measured is the way that it takes from a worker to a client, and not how anybody came to it."
	answerTokens, promptTokens = 40, 17
)

// handle is what vLLM's routers wait for in prefill's answer.
const handle = `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"bench","remote_block_ids":[1,2],"remote_host":"127.0.0.1","remote_port":5600,"remote_request_id":"bench","tp_size":1}`

// ServeHTTP serves one call.
func (l *leg) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet:
		body, ok := l.about[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if body != "" {
			w.Header().Set("Content-Type", "application/json")
		}
		_, _ = io.WriteString(w, body)
		return
	case r.URL.Path == "/abort_request":
		return
	case r.URL.Path != "/v1/chat/completions":
		http.NotFound(w, r)
		return
	}
	kept, _ := l.bodies.Get().(*bytes.Buffer)
	if kept == nil {
		kept = new(bytes.Buffer)
	}
	defer l.bodies.Put(kept)
	kept.Reset()
	kept.Grow(int(max(0, r.ContentLength)) + bytes.MinRead)
	_, err := kept.ReadFrom(r.Body)
	body := kept.Bytes()
	var v struct {
		Messages []struct{ Role, Content string }
	}
	if err != nil || json.Unmarshal(body, &v) != nil || len(v.Messages) != 1 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	// Some put their own members in front of the prompt, some behind it.
	c := commands{body[:min(len(body), peekSize)], body[max(0, len(body)-peekSize):]}
	if c.has(`"stream":true`) && l.role != legPrefill {
		l.stream(w, c)
		return
	}
	l.whole(w, c)
}

// commands is the two ends of a request.
type commands [2][]byte

func (c commands) has(text string) bool {
	return bytes.Contains(c[0], []byte(text)) || bytes.Contains(c[1], []byte(text))
}

// rid is the request id that the answer must carry; a client's own request has none.
func (c commands) rid() string {
	for _, b := range c {
		_, rest, ok := bytes.Cut(b, []byte(`"rid":"`))
		if id, _, whole := bytes.Cut(rest, []byte(`"`)); ok && whole {
			return string(id)
		}
	}
	return "0123456789abcdef0123456789abcdef"
}

// whole answers in one piece.
func (l *leg) whole(w http.ResponseWriter, c commands) {
	text, finish, tokens, more := answerText, "stop", answerTokens, ""
	if l.role == legPrefill {
		text, finish, tokens = "The", "length", 1
		if c.has(`"kv_transfer_params"`) {
			more = handle
		}
	}
	body := fmt.Appendf(nil, `{"id":%q,"object":"chat.completion","created":%d,"model":%q,"choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":%q,"matched_stop":null}],`+
		`"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,"reasoning_tokens":0}%s}`,
		c.rid(), l.created, servedModel, text, finish, promptTokens, promptTokens+tokens, tokens, more)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// stream answers in streamEvents events, each flushed at once: the role, tokens, the
// reason of the end, the usage, the end mark. Every token says the usage so far if the
// request asked for that.
func (l *leg) stream(w http.ResponseWriter, c commands) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	head := fmt.Appendf(nil, `data: {"id":%q,"object":"chat.completion.chunk","created":%d,"model":%q,"choices":[`, c.rid(), l.created, servedModel)
	each, usage := c.has(`"continuous_usage_stats":true`), c.has(`"include_usage":true`)
	buf := make([]byte, 0, 512)
	for i := range streamEvents - 1 {
		buf = append(buf[:0], head...)
		says, tokens := false, i
		switch last := streamEvents - 2; {
		case i == 0:
			buf = append(buf, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}]`...)
		case i == last && usage:
			buf, says, tokens = append(buf, ']'), true, last-2
		case i == last-1 && usage, i == last:
			buf = append(buf, `{"index":0,"delta":{"content":null},"logprobs":null,"finish_reason":"stop","matched_stop":2}]`...)
		default:
			text := " word"
			if i == 1 {
				text = "The"
			}
			buf = fmt.Appendf(buf, `{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":null,"matched_stop":null}]`, text)
			says = each
		}
		if says {
			buf = fmt.Appendf(buf, `,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,"reasoning_tokens":0}`,
				promptTokens, promptTokens+tokens, tokens)
		}
		if _, err := w.Write(append(buf, "}\n\n"...)); err != nil || flush() != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// client is a transport as the gateway's own is.
func client() *http.Transport {
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
}

// bareProxy is Go's own reverse proxy before one leg.
func bareProxy(to *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: client(),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Otherwise a leg that answers faster than the transport looks for the end of
		// the body makes the server close that body, and the transport its connection.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}

// floor is the least that a PD route in Go can do: it reads a body, splices an id
// into it, sends it to both legs, waits for both, and passes on what decode says. It
// reads no JSON and checks nothing.
type floor struct {
	transport       *http.Transport
	prefill, decode string
}

func (f *floor) post(r *http.Request, to string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, to+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return f.transport.RoundTrip(req)
}

// splice puts an id in front of the members of a JSON object.
func splice(body []byte) []byte {
	const id = `"rid":"bench-0123456789abcdef0123456789abcdef",`
	out := append(make([]byte, 0, len(body)+len(id)), '{')
	return append(append(out, id...), body[1:]...)
}

// ServeHTTP serves one request.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := make([]byte, max(0, r.ContentLength))
	if _, err := io.ReadFull(r.Body, body); err != nil || len(body) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	prefilled := make(chan error, 1)
	go func() {
		resp, err := f.post(r, f.prefill, splice(body))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close() // it was read to its end, or err says why not
		}
		prefilled <- err
	}()
	resp, err := f.post(r, f.decode, splice(body))
	if failed := <-prefilled; err != nil || failed != nil {
		if err == nil {
			_ = resp.Body.Close() // the error that counts is prefill's
		}
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	if n := resp.ContentLength; n >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	}
	flush := func() error { return nil }
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		flush = http.NewResponseController(w).Flush
	}
	relay(w, bufio.NewReaderSize(resp.Body, 16<<10), flush)
}

// relay copies an answer, and calls flush whenever nothing more is there.
func relay(w io.Writer, from *bufio.Reader, flush func() error) {
	for {
		if _, err := from.Peek(1); err != nil {
			return
		}
		b, _ := from.Peek(from.Buffered())
		if _, err := w.Write(b); err != nil {
			return
		}
		_, _ = from.Discard(len(b)) // they are there
		if flush() != nil {
			return
		}
	}
}
