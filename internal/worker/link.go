package worker

import (
	"context"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/wire"
)

// peer is a prefill worker as decode sees it. current belongs to the owner
// loop; the rest is fixed.
type peer struct {
	Peer
	current *conn
	again   chan struct{} // asks for a successor of the current link
}

// redial asks for a new link beside the current one.
func (p *peer) redial() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// peer looks a label up among the configured peers (H-13).
func (w *Worker) peer(label string) *peer {
	for _, p := range w.peers {
		if p.Label == label {
			return p
		}
	}
	return nil
}

// links keeps the worker linked until ctx ends, and returns when every link is
// closed.
func (w *Worker) links(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	if w.cfg.Role == wire.RolePrefill {
		l, err := w.cfg.Transport.Listen(w.cfg.Bootstrap, w.hello, &handler{w: w, open: &all}, nil)
		if err != nil {
			return err
		}
		<-ctx.Done()
		return l.Close()
	}
	for _, p := range w.peers {
		all.Go(func() { w.keep(ctx, p, &all) })
	}
	<-ctx.Done()
	return nil
}

// Backoff of a dial that fails.
const (
	redialFirst = 50 * time.Millisecond
	redialMost  = 2 * time.Second
)

// keep keeps one live link to a peer: it dials, waits until the link is closed
// or asked to be succeeded, and dials again.
func (w *Worker) keep(ctx context.Context, p *peer, all *sync.WaitGroup) {
	wait := redialFirst
	for ctx.Err() == nil {
		h := &handler{w: w, peer: p, gone: make(chan struct{})}
		l, err := w.cfg.Transport.Dial(ctx, p.Addr, w.hello, h, w.pool.Landing())
		if err != nil {
			reason := wire.ReasonOf(err).String()
			w.mail.put(func(w *Worker) {
				w.cfg.Events.Event(Event{Kind: LinkDown, Peer: p.Label, Reason: reason})
			})
			if !pause(ctx, wait) {
				return
			}
			wait = min(2*wait, redialMost)
			continue
		}
		wait = redialFirst
		all.Go(func() { // a link outlives its turn as the current one
			select {
			case <-h.gone:
			case <-ctx.Done():
				l.Close(errStopping)
				<-h.gone
			}
		})
		select {
		case <-h.gone: // a peer that hangs up at once is not dialled in a circle
			pause(ctx, redialFirst)
		case <-p.again:
		case <-ctx.Done():
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// handler passes what a link reports to the owner loop, in the link's order.
type handler struct {
	w    *Worker
	peer *peer           // decode: whom the link was dialled to
	open *sync.WaitGroup // prefill: counts open links
	gone chan struct{}   // decode: closed when the link is
}

// Opened implements wire.Handler.
func (h *handler) Opened(l wire.Link) {
	if h.open != nil {
		h.open.Add(1)
	}
	h.w.mail.put(func(w *Worker) { w.opened(l, h.peer) })
}

// Receive implements wire.Handler.
func (h *handler) Receive(l wire.Link, m wire.Message) {
	h.w.mail.weigh(1+len(m.Digests)/mailDigests, func(w *Worker) { w.receive(l, m) })
}

// Written implements wire.Handler.
func (h *handler) Written(_ wire.Link, id uint64, err error) {
	h.w.mail.put(func(w *Worker) { w.written(id, err) })
}

// Closed implements wire.Handler.
func (h *handler) Closed(l wire.Link, err error) {
	h.w.mail.put(func(w *Worker) { w.closed(l, err) })
	if h.open != nil {
		h.open.Done()
	}
	if h.gone != nil {
		close(h.gone)
	}
}
