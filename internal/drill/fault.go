package drill

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// watch is prefill's transport with eyes: it tells the address, and counts the
// page writes that completed.
type watch struct {
	wire.Transport
	addr chan string

	mu   sync.Mutex
	done int
}

// Listen implements wire.Transport.
func (w *watch) Listen(addr string, hello wire.Hello, h wire.Handler, l *kv.Landing) (wire.Listener, error) {
	ln, err := w.Transport.Listen(addr, hello, &watcher{Handler: h, watch: w}, l)
	if err == nil {
		w.addr <- ln.Addr()
	}
	return ln, err
}

// completed is the number of page writes that have completed.
func (w *watch) completed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

type watcher struct {
	wire.Handler
	watch *watch
}

// Written implements wire.Handler.
func (w *watcher) Written(l wire.Link, id uint64, err error) {
	w.Handler.Written(l, id, err)
	w.watch.mu.Lock()
	w.watch.done++
	w.watch.mu.Unlock()
}

// placeholder is the one token that the legacy validator runs instead of a
// prompt that it refused.
const placeholder = ' '

// legacy stands between the router and prefill like the validator of the
// incident: it refuses a request, keeps the refusal to itself, and lets the
// engine run a placeholder of one token in the request's name. It has the key of
// the passes because it plays a part of the worker. It stands there in both
// runs; no worker of Bulkhead holds a line of it.
func (r *rig) legacy(worker http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
			if err != nil {
				http.Error(rw, "body", http.StatusBadRequest)
				return
			}
			body = r.replace(req, body)
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			req.Header.Set("Content-Length", strconv.Itoa(len(body)))
		}
		worker.ServeHTTP(rw, req)
	})
}

// replace puts the placeholder in the place of a prompt that the story's
// validator refuses.
func (r *rig) replace(req *http.Request, body []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var b map[string]any
	if dec.Decode(&b) != nil {
		return body
	}
	prompt, _ := b["prompt"].(string)
	number, _ := b["bootstrap_room"].(json.Number)
	room, err := number.Int64()
	if err != nil || !r.stub(prompt) {
		return body
	}
	pass, err := r.passes.Check(req.Header.Get("X-Bulkhead-Pass"), room, body, time.Now())
	if err != nil {
		return body
	}
	b["prompt"] = []int{placeholder}
	out, err := json.Marshal(b)
	if err != nil {
		return body
	}
	req.Header.Set("X-Bulkhead-Pass", r.passes.Mint(pass.Attempt, pass.Domain, pass.Expiry, room, out))
	return out
}

// policy is what the transport does to prefill's pages and notices. A nil gate
// lets pass.
type policy struct {
	pages   *wire.Gate
	ordinal func(int) bool // which pages of a reservation wait at the gate
	notices *wire.Gate
}

// every says yes to every page.
func every(int) bool { return true }

// set makes p the policy for what prefill sends from now on.
func (r *rig) set(p policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policy = p
}

func (r *rig) onPage(w wire.PageWrite) wire.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policy.pages == nil || !r.policy.ordinal(w.Page) {
		return wire.Fault{}
	}
	return wire.Fault{Do: wire.ActDelay, Until: r.policy.pages}
}

func (r *rig) onMessage(m wire.Message) wire.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policy.notices == nil || m.Kind != handoff.Notice {
		return wire.Fault{}
	}
	return wire.Fault{Do: wire.ActDelay, Until: r.policy.notices}
}
