package fleet

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestApart holds whose requests share a connection (G-12): where answers carry no id of
// ours, only those of one tenant; at an engine to which connections are dear, nobody's; at
// all others, everybody's. None is kept so long that its engine closes it.
func TestApart(t *testing.T) {
	for d, want := range map[upstream.Dialect][2]bool{ // one tenant's, two tenants'
		upstream.OpenAI: {true, false}, upstream.LlamaCPP: {false, false}, upstream.VLLM: {true, true}, upstream.SGLang: {true, true},
	} {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				n.plain("a:1", 672)
				r := n.start(t, Spec{Dialect: d, Window: 1000, Plain: []Source{{Name: "a", URL: "http://a:1"}}})
				node := r.g.Nodes()[0]
				dials := 0
				node.group.dial = func(ctx context.Context, kind, address string) (net.Conn, error) {
					dials++
					return n.dial(ctx, kind, address)
				}
				ask := func(tenant string) string {
					t.Helper()
					before := dials
					req, err := node.NewRequest(t.Context(), "GET", "/v1/models", nil)
					if err != nil {
						t.Fatal(err)
					}
					node.KeepApart(req, tenant)
					if req.Host != "a:1" {
						t.Errorf("the engine is told to be %q", req.Host)
					}
					resp, err := node.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body) // its end gives the connection back
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
						t.Fatal(resp.Status)
					}
					synctest.Wait()
					if dials > before {
						return "new"
					}
					return "kept"
				}
				first, again, other := ask("one"), ask("one"), ask("two")
				if first != "new" || (again == "kept") != want[0] || (other == "kept") != want[1] {
					t.Errorf("first %s, the same tenant %s, another %s; want kept: %v", first, again, other, want)
				}
				time.Sleep(4500 * time.Millisecond) // engines close at 5 s what is idle
				if late := ask("one"); (late == "kept") != d.Traits().Hosted {
					t.Errorf("after 4.5 s the connection is %s", late)
				}
				if back := ask("one"); (back == "kept") != want[0] {
					t.Errorf("the first tenant again: %s", back)
				}
			})
		})
	}
}
