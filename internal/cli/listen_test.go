package cli

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/gateway"
)

// goodFront is a front of goodSite, whose workers are not there.
func goodFront(t *testing.T) *gateway.Front {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	if err := os.WriteFile(path, []byte(goodSite), 0o600); err != nil {
		t.Fatal(err)
	}
	env := goodEnv()
	s, err := loadSite(System{Getenv: func(k string) string { return env[k] }}, path, noEvents{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := gateway.NewFront(s.gateway)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDrainEnds: a request that does not end within the drain is cut, and gets no
// answer that looks like one.
func TestDrainEnds(t *testing.T) {
	front := goodFront(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	over := errors.New("over")
	go func() {
		ended <- serveWhile(ln, front, front, func(<-chan error) error { <-stop; return over }, func() time.Duration { return time.Nanosecond })
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + goodEnv()["KEY"] +
		"\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 50\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n') // from here on its body is waited for
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q, %v", line, err)
	}
	if front.Status().InFlight != 1 {
		t.Errorf("%+v", front.Status())
	}
	close(stop)
	if err := <-ended; err != over {
		t.Errorf("%v", err)
	}
	rest, _ := io.ReadAll(in) // a reset is as good as an end
	if strings.Contains(string(rest), "HTTP/1.1 200") {
		t.Errorf("it was answered: %s", rest)
	}
	if front.Status().Configuration != 0 {
		t.Error("the front was not closed")
	}
}

// TestServerFails: a server that ends by itself is told.
func TestServerFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	front := goodFront(t)
	err = serveWhile(ln, front, front, func(failed <-chan error) error { return <-failed }, func() time.Duration { return time.Second })
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestTaken: an address that is in use is told by its setting.
func TestTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	for setting, to := range map[string]string{
		"listen":       "listen: " + ln.Addr().String(),
		"admin.listen": "listen: 127.0.0.1:0\nadmin: {listen: \"" + ln.Addr().String() + "\"}",
	} {
		if err := os.WriteFile(path, []byte(strings.Replace(goodSite, "listen: 127.0.0.1:0", to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, said := run(t, goodEnv(), "serve", "--config", path)
		if code != exitUsage || out != "" || !strings.Contains(said, ": "+setting+": cannot listen on "+ln.Addr().String()) {
			t.Errorf("%s: %d %s %s", setting, code, out, said)
		}
	}
}

// TestOneTenant: every caller has the one key, whatever it says of itself.
func TestOneTenant(t *testing.T) {
	var got []string
	h := asOneTenant("the-key", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Values("Authorization") }))
	for _, said := range [][]string{nil, {"Bearer other"}, {"Bearer a", "Bearer b"}, {"Basic x"}} {
		r, err := http.NewRequest(http.MethodPost, "/v1/completions", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Authorization"] = said
		h.ServeHTTP(nil, r)
		if len(got) != 1 || got[0] != "Bearer the-key" {
			t.Errorf("%v became %v", said, got)
		}
	}
}
