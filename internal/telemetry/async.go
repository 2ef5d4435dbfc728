package telemetry

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Async is a writer that never makes its caller wait: a worker's owner loop logs
// through it. What does not fit is dropped and counted.
type Async struct {
	lines chan []byte
	done  chan struct{}
	lost  atomic.Int64

	mu     sync.RWMutex // writers share it
	closed bool
}

// maxWrite is how many bytes one write collects, roughly.
const maxWrite = 32 << 10

// maxLines is how many log lines may wait to be written.
const maxLines = 1024

// NewAsync makes a writer in front of w. The caller must call [Async.Close].
func NewAsync(w io.Writer) *Async {
	a := &Async{lines: make(chan []byte, maxLines), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		var all []byte
		for line := range a.lines {
			// What waits besides goes in the same write.
			for all = append(all[:0], line...); len(a.lines) > 0 && len(all) < maxWrite; {
				all = append(all, <-a.lines...)
			}
			_, _ = w.Write(all) // there is nowhere to say that it failed
		}
	}()
	return a
}

// Write takes one line.
func (a *Async) Write(p []byte) (int, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		a.lost.Add(1)
		return len(p), nil
	}
	select {
	case a.lines <- bytes.Clone(p):
	default:
		a.lost.Add(1)
	}
	return len(p), nil
}

// Lost is how many lines were dropped.
func (a *Async) Lost() int64 { return a.lost.Load() }

// Log registers how many lines of the log that goes through a were dropped.
func (s *Set) Log(a *Async) {
	s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "bulkhead", Name: "log_lines_lost_total", Help: "Lines of the log that were dropped, for nobody read them in time.",
		ConstLabels: prometheus.Labels{"role": s.role},
	}, func() float64 { return float64(a.Lost()) }))
}

// Close waits until the lines that were taken are written, but no longer than
// wait: nobody may read them. What is written afterwards is lost.
func (a *Async) Close(wait time.Duration) {
	a.mu.Lock()
	a.closed = true
	close(a.lines)
	a.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-a.done:
	case <-t.C:
	}
}
