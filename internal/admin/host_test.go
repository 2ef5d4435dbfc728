package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestByName holds that a page in an operator's browser cannot read a listener on loopback
// by a name of its own that it made lead there.
func TestByName(t *testing.T) {
	h := Handler(answers())
	for _, tc := range []struct {
		local, host string
		want        int
	}{
		{"127.0.0.1:8081", "127.0.0.1:8081", 200}, {"127.0.0.1:8081", "localhost:8081", 200}, {"127.0.0.1:8081", "LocalHost", 200},
		{"[::1]:8081", "[::1]:8081", 200}, {"[::1]:8081", "[::1]", 200}, {"127.0.0.1:8081", "10.0.0.1", 200},
		{"127.0.0.1:8081", "evil.example:8081", 421}, {"127.0.0.1:8081", "evil.example", 421}, {"127.0.0.1:8081", "127.0.0.1.evil.example", 421},
		{"[::1]:8081", "evil.example:8081", 421}, {"[::ffff:127.0.0.1]:8081", "evil.example:8081", 421}, {"127.0.0.1:8081", "localhost.evil.example", 421},
		{"127.0.0.1:8081", "", 421},
		{"10.0.0.1:8081", "bulkhead-admin.llm.svc:8081", 200}, // elsewhere it is asked by whatever name it has
	} {
		addr, err := net.ResolveTCPAddr("tcp", tc.local)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/v1/posture", "/v1/shadow", "/readyz"} {
			req := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(addr)), "GET", path, nil)
			req.Host = tc.host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if got := w.Code; got == http.StatusMisdirectedRequest != (tc.want == 421) {
				t.Errorf("%s to %s as %q: %d", path, tc.local, tc.host, got)
			}
		}
	}
}
