package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// maxEarlier is how many earlier configurations may still have requests in progress.
const maxEarlier = 8

// ErrEarlier says that a configuration was not taken over because too many earlier ones
// still have requests in progress. It may be taken over after [Front.Eased].
var ErrEarlier = errors.New("gateway: exchange: requests of too many earlier configurations are in progress")

// errClosed says that a front has been closed.
var errClosed = errors.New("gateway: exchange: the front is closed")

// Front is an http.Handler with a gateway that can be exchanged while it serves. A
// request finishes under the configuration that it began with. What it holds of the
// budgets counts under the next one too (G-14); a tenant is the same one if its ID is.
type Front struct {
	exchanging sync.Mutex // one exchange at a time

	mu      sync.RWMutex // guards what follows
	current *life        // nil once closed
	earlier int          // lives that still have requests
	number  int

	eased chan struct{} // holds one

	running sync.WaitGroup // of the lives, and of those who wait for them
}

// life is one gateway at work.
type life struct {
	gateway  *Gateway
	requests sync.WaitGroup
	end      context.CancelFunc // of its Run
}

// NewFront makes a front with a first gateway and runs it. The caller must call
// [Front.Close].
func NewFront(c Config) (*Front, error) {
	g, err := New(c)
	if err != nil {
		return nil, err
	}
	f := &Front{eased: make(chan struct{}, 1)}
	f.install(g)
	return f, nil
}

// Exchange puts a gateway of another configuration in place. It looks at its workers
// first, so that requests find them known. After an error everything is as it was.
func (f *Front) Exchange(ctx context.Context, c Config) error {
	f.exchanging.Lock()
	defer f.exchanging.Unlock()
	g, err := New(c)
	if err != nil {
		return err
	}
	f.mu.RLock()
	old, earlier := f.current, f.earlier
	f.mu.RUnlock()
	if old == nil {
		return errClosed
	}
	if earlier >= maxEarlier {
		return ErrEarlier
	}
	g.fleet.Follow(old.gateway.fleet)
	g.Refresh(ctx)
	if err := ctx.Err(); err != nil {
		g.fleet.Leave()
		return err
	}
	g.follow(old.gateway)
	g.fleet.Lead()
	f.install(g)
	return nil
}

// follow makes g, which serves nobody yet, go on where an earlier gateway stands: what its
// requests hold of the budgets, and what is remembered.
func (g *Gateway) follow(old *Gateway) {
	g.seats.Follow(old.seats)
	g.bytes.Follow(old.bytes)
	for id, t := range g.door.byID {
		if before := old.door.byID[id]; before != nil {
			t.follow(before)
		}
	}
	n := g.records.Size()
	g.records, g.shadows = old.records, old.shadows
	g.records.Resize(n)
}

// install runs g, makes it the current one, and ends its predecessor once that has no
// requests any more.
func (f *Front) install(g *Gateway) {
	ctx, end := context.WithCancel(context.Background())
	f.running.Go(func() { g.Run(ctx) })
	f.mu.Lock()
	old := f.current
	f.current = &life{gateway: g, end: end}
	f.number++
	if old != nil {
		f.earlier++
	}
	f.mu.Unlock()
	if old == nil {
		return
	}
	f.running.Go(func() {
		old.requests.Wait()
		old.end()
		f.mu.Lock()
		f.earlier--
		f.mu.Unlock()
		select {
		case f.eased <- struct{}{}:
		default: // it is known already
		}
	})
}

// Eased receives after requests of an earlier configuration have ended, all of them: once,
// however many configurations it were since the last time.
func (f *Front) Eased() <-chan struct{} { return f.eased }

// enter takes the current life for one request; nil once the front is closed. No request
// enters a life that has been exchanged, so that waiting for its requests ends.
func (f *Front) enter() *life {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.current != nil {
		f.current.requests.Add(1)
	}
	return f.current
}

// ServeHTTP serves one request under the current configuration.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := f.enter()
	if l == nil {
		panic(http.ErrAbortHandler) // the server is being shut down around us
	}
	defer l.requests.Done()
	l.gateway.ServeHTTP(w, r)
}

// FrontStatus is the state of a front.
type FrontStatus struct {
	Status
	// Configuration counts the configurations up to the current one, from 1; 0 once the
	// front is closed. Earlier is how many others still have requests.
	Configuration, Earlier int
}

// Status returns the state of the current gateway.
func (f *Front) Status() FrontStatus {
	f.mu.RLock()
	l, s := f.current, FrontStatus{Configuration: f.number, Earlier: f.earlier}
	f.mu.RUnlock()
	if l == nil {
		return FrontStatus{}
	}
	s.Status = l.gateway.Status()
	return s
}

// gateway is the current gateway; nil once the front is closed.
func (f *Front) gateway() *Gateway {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.current == nil {
		return nil
	}
	return f.current.gateway
}

// Explain finds what is remembered of a request, by its public id.
func (f *Front) Explain(id string) (Record, bool) {
	if g := f.gateway(); g != nil {
		return g.Explain(id)
	}
	return Record{}, false
}

// Posture says which rules hold on which route.
func (f *Front) Posture() []Stance {
	if g := f.gateway(); g != nil {
		return g.Posture()
	}
	return nil
}

// Shadow returns what passed only because a control is in shadow.
func (f *Front) Shadow() []ShadowCount {
	if g := f.gateway(); g != nil {
		return g.Shadow()
	}
	return nil
}

// Close takes no more requests, waits for those in progress and for what is still to be
// told to the workers. It is called once, after the server was shut down or closed:
// connections that were cut end their requests.
func (f *Front) Close() {
	f.exchanging.Lock()
	defer f.exchanging.Unlock()
	f.mu.Lock()
	l := f.current
	f.current = nil
	f.mu.Unlock()
	l.requests.Wait()
	l.end()
	f.running.Wait()
}
