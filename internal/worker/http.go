package worker

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/wire"
)

// PassHeader carries what the gateway authorised (H-16).
const PassHeader = "X-Bulkhead-Pass"

// Version is the version of the worker's HTTP dialect.
const Version = "bulkhead-1"

// Handler is the worker's HTTP side: the dialect of an SGLang PD node, for
// attempts that the gateway authorised. metrics, if not nil, serves /metrics.
//
// The server that runs it must bound the time of a request's header; body and
// answer are bounded here.
func (w *Worker) Handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	route := func(method, path string, h http.HandlerFunc) {
		mux.Handle(path, refusal(fault.MethodNotAllowed))
		mux.HandleFunc(method+" "+path, h)
	}
	route("POST", "/v1/chat/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, formChat) })
	route("POST", "/v1/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, formText) })
	route("POST", "/abort_request", w.abortRequest)
	route("GET", "/v1/models", w.models)
	route("GET", "/server_info", w.info)
	route("GET", "/health", w.health)
	if w.cfg.OpenDialect {
		route("POST", "/generate", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, formGenerate) })
		route("GET", "/get_server_info", w.info)
		route("GET", "/model_info", w.modelInfo)
		route("GET", "/get_model_info", w.modelInfo)
		route("GET", "/v1/loads", w.loads)
		route("GET", "/health_generate", w.health)
	}
	if metrics != nil {
		route("GET", "/metrics", metrics.ServeHTTP)
	}
	mux.Handle("/", refusal(fault.PathNotFound))
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.giveTime(rw)
		if r.ContentLength != 0 {
			// Also of a body that nobody asks for: the server reads it before it answers.
			_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(w.cfg.BodyTime)) // see giveTime
		}
		mux.ServeHTTP(rw, r)
	})
}

// refusal answers everything with one fault.
func refusal(code fault.Code) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { refuse(rw, fault.New(code), "") })
}

func refuse(rw http.ResponseWriter, f *fault.Error, id string) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(f.Status)
	_, _ = rw.Write(f.WithID(id).Body()) // the client may be gone; there is nothing to tell it
}

func writeJSON(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v) // see refuse
}

// giveTime gives the client its time to take the next write. A server without
// deadlines, as in some tests, waits.
func (w *Worker) giveTime(rw http.ResponseWriter) {
	_ = http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(w.cfg.WriteTime))
}

func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	writeJSON(rw, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": w.cfg.ServedName, "object": "model", "created": 0,
		"owned_by": "sglang", "max_model_len": w.limit(),
	}}})
}

// ready reports whether the worker can serve: decode needs a live link.
func (w *Worker) ready() bool {
	return w.cfg.Role == wire.RolePrefill || w.Linked() > 0
}

func (w *Worker) health(rw http.ResponseWriter, _ *http.Request) {
	if !w.ready() {
		refuse(rw, fault.New(fault.PeerGone), "")
	}
}

// info tells what a gateway admits by. A worker that cannot serve does not
// answer it, so that no gateway counts on it.
func (w *Worker) info(rw http.ResponseWriter, _ *http.Request) {
	if !w.ready() {
		refuse(rw, fault.New(fault.PeerGone), "")
		return
	}
	s := w.status.get()
	writeJSON(rw, map[string]any{
		"disaggregation_mode": w.cfg.Role.String(), "served_model_name": w.cfg.ServedName, "model_path": w.cfg.ServedName,
		"context_length": w.cfg.Window, "page_size": w.cfg.PageTokens, "max_total_num_tokens": w.capacity(),
		"max_req_input_len": w.limit(), "version": Version, "incarnation": fmt.Sprintf("%016x", w.hello.Incarnation),
		"pages_free": s.Counts.Free, "pages_total": s.Counts.Total, "pages_cached": s.Counts.Cached,
		"quarantined_pages": s.Counts.Quarantined,
		"links":             s.Links, "attempts": s.Attempts, "tombstones": s.Stones, "waiting": s.Waiting,
	})
}

// maxAbort is the size of the body of /abort_request, in bytes.
const maxAbort = 4096

// abortRequest ends an attempt by the exact id that the gateway gave it (G-6).
func (w *Worker) abortRequest(rw http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || w.cfg.Control == "" || subtle.ConstantTimeCompare([]byte(token), []byte(w.cfg.Control)) != 1 {
		refuse(rw, fault.New(fault.BadPass), "")
		return
	}
	data, f := w.readBody(rw, r, maxAbort)
	if f != nil {
		refuse(rw, f, "")
		return
	}
	m, f := parse(data)
	rid := ""
	if f == nil {
		f = m.read("rid", &rid, fault.Fixed("a string"))
	}
	if f == nil && rid == "" {
		f = fault.New(fault.MissingField, fault.Field("rid"))
	}
	if f != nil {
		refuse(rw, f, "")
		return
	}
	w.mail.put(func(w *Worker) { w.abort(rid) })
	writeJSON(rw, map[string]any{"success": true})
}

// purse bounds the bytes of all bodies that are being read and parsed.
type purse struct {
	mu   sync.Mutex
	left int64
}

func (p *purse) take(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.left {
		return false
	}
	p.left -= n
	return true
}

func (p *purse) give(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left += n
}

// leastBody is what a body costs of the purse at least, in bytes: it bounds how
// many senders can be slow at once.
const leastBody = 16 << 10

// cost is what a request's body costs of the purse while it is read and parsed.
func (w *Worker) cost(r *http.Request) int64 {
	if r.ContentLength < 0 || r.ContentLength > w.cfg.BodyBytes {
		return w.cfg.BodyBytes
	}
	return max(r.ContentLength, leastBody)
}

// readBody reads a body of at most limit bytes, in BodyTime.
func (w *Worker) readBody(rw http.ResponseWriter, r *http.Request, limit int64) ([]byte, *fault.Error) {
	if r.ContentLength > limit {
		return nil, fault.New(fault.BodyTooLarge, fault.Int(limit))
	}
	data, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, limit))
	var big *http.MaxBytesError
	switch {
	case err == nil:
		return data, nil
	case errors.As(err, &big):
		return nil, fault.New(fault.BodyTooLarge, fault.Int(limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault.New(fault.BodyTooSlow)
	}
	return nil, fault.New(fault.BodyIncomplete)
}
