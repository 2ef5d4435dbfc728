package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAsync: a writer that nobody reads holds nobody up, and loses what does not
// fit, not what does.
func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		a := NewAsync(w)
		for i := range maxLines + 100 {
			fmt.Fprintf(a, "line %d\n", i)
			if i == 0 {
				synctest.Wait() // the first one is being written
			}
		}
		if a.Lost() != 99 {
			t.Errorf("%d lines lost, want 99", a.Lost())
		}
		s := New("gateway", slog.New(slog.DiscardHandler))
		s.Log(a)
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		if want := `bulkhead_log_lines_lost_total{role="gateway"} 99`; !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s is not in\n%s", want, rec.Body)
		}
		a.Close(time.Second) // nobody reads
		read := make(chan string)
		go func() {
			all, _ := io.ReadAll(r)
			read <- string(all)
		}()
		<-a.done
		_ = w.Close()
		if got := strings.Count(<-read, "\n"); got != maxLines+1 {
			t.Errorf("%d lines written, want %d", got, maxLines+1)
		}
	})
}
