package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary builds the program once for the tests of this package.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.TempDir(), fmt.Sprintf("bulkhead-test-%d", os.Getpid()))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	out, err := exec.Command("go", "build", "-o", path, "bulkhead.dev/bulkhead/cmd/bulkhead").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("bulkhead-test-%d", os.Getpid())))
	os.Exit(code)
}

// site is a bulkhead up that runs.
type site struct {
	t    *testing.T
	cmd  *exec.Cmd
	text string // what it printed
	err  bytes.Buffer
	url  string
	key  string
	port map[string]string // of the workers' HTTP sides
	done chan error
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// whole waits until every page of a worker's pool is free.
func (s *site) whole(name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		var info struct {
			Free  int `json:"pages_free"`
			Total int `json:"pages_total"`
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+s.port[name]+"/server_info", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			err = json.NewDecoder(resp.Body).Decode(&info)
			_ = resp.Body.Close()
			if err == nil && info.Total > 0 && info.Free == info.Total {
				return
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			s.t.Fatalf("the pool of %s is not whole: %d of %d pages are free", name, info.Free, info.Total)
		}
	}
}

func startUp(t *testing.T, args ...string) *site {
	t.Helper()
	s := &site{t: t, done: make(chan error, 1), port: map[string]string{"prefill-0": freePort(t), "decode-0": freePort(t)}}
	args = append([]string{"up", "--port", "0", "--prefill-port", s.port["prefill-0"], "--decode-port", s.port["decode-0"]}, args...)
	s.cmd = exec.Command(binary(t), args...)
	s.cmd.Stderr = &s.err
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.text += lines.Text() + "\n"
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			break
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		s.done <- s.cmd.Wait()
	}()
	s.url = regexp.MustCompile(`http://[0-9.:]+`).FindString(s.text)
	s.key = regexp.MustCompile(`bk-[0-9a-f]+`).FindString(s.text)
	if s.url == "" || s.key == "" {
		t.Fatalf("up printed no url or key:\n%s", s.text)
	}
	return s
}

// stop interrupts it, as Ctrl-C does, and expects a clean end.
func (s *site) stop() {
	if s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Signal(os.Interrupt)
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Errorf("up ended with %v", err)
		}
	case <-late.C:
		_ = s.cmd.Process.Kill()
		s.t.Error("up did not stop")
	}
}

// pid is the process of a worker, as the banner names it.
func (s *site) pid(name string) int {
	s.t.Helper()
	var pid int
	m := regexp.MustCompile(name + ` (\d+)`).FindStringSubmatch(s.text)
	if m == nil {
		s.t.Fatalf("no process of %s in:\n%s", name, s.text)
	}
	if _, err := fmt.Sscan(m[1], &pid); err != nil {
		s.t.Fatal(err)
	}
	return pid
}

func (s *site) post(ctx context.Context, body map[string]any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Do(req)
}

// works waits until a request is served, and checks the answer.
func (s *site) works() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		resp, err := s.post(ctx, map[string]any{
			"model": "recall", "prompt": "The harbour master is Odile. The harbour master is", "max_tokens": 7, "temperature": 0,
		})
		if err != nil {
			s.t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == 200 {
			if !strings.Contains(string(body), `" Odile."`) {
				s.t.Fatalf("wrong answer: %s", body)
			}
			return
		}
		if resp.StatusCode < 500 {
			s.t.Fatalf("status %d: %s", resp.StatusCode, body)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.t.Fatalf("no answer; last: %d %s\n%s", resp.StatusCode, body, s.err.String())
		}
	}
}

func TestUp(t *testing.T) {
	s := startUp(t)
	s.works()
	if strings.Count(s.text, s.key) != 2 { // the line of the key, and the curl line
		t.Errorf("the key is printed %d times", strings.Count(s.text, s.key))
	}
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is missing, so the line to paste cannot be tried")
	}
	line := s.text[strings.Index(s.text, "  curl"):strings.Index(s.text, "\n\nCtrl-C")]
	out, err := exec.Command("sh", "-c", strings.Replace(line, "curl", curl+" -s", 1)).CombinedOutput()
	if err != nil {
		t.Fatalf("the line to paste: %v\n%s", err, out)
	}
	if text := deltas(string(out)); text != " heliotrope, kept by Mara. The cod" || !strings.Contains(string(out), "data: [DONE]") {
		t.Errorf("the line to paste answered %q:\n%s", text, out)
	}
}

// deltas joins the text of a chat stream.
func deltas(stream string) string {
	text := ""
	for _, line := range strings.Split(stream, "\n") {
		var e struct {
			Choices []struct {
				Delta struct{ Content string }
				Text  string
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e) == nil && len(e.Choices) > 0 {
			text += e.Choices[0].Delta.Content + e.Choices[0].Text
		}
	}
	return text
}

func TestPortInUse(t *testing.T) {
	s := startUp(t)
	port := s.url[strings.LastIndex(s.url, ":")+1:]
	for _, flag := range []string{"port", "prefill-port", "decode-port", "bootstrap-port"} {
		args := []string{"up", "--port", "0", "--" + flag, port}
		out, err := exec.Command(binary(t), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--"+flag) || !strings.Contains(string(out), port) {
			t.Errorf("%s: %v: %s", flag, err, out)
		}
	}
}

// longStream asks for a stream that lasts, and returns it after its first bytes.
func (s *site) longStream(tokens int) *http.Response {
	s.t.Helper()
	line := "All hands to the pumps, and mind the lower hatch. "
	resp, err := s.post(context.Background(), map[string]any{
		"model": "recall", "prompt": strings.Repeat(line, 8), "max_tokens": tokens, "stream": true, "temperature": 0,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		body, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 64)); err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// TestKillDecode kills decode in mid-stream.
func TestKillDecode(t *testing.T) {
	s := startUp(t)
	s.works()
	resp := s.longStream(20000)
	defer resp.Body.Close()
	if err := syscall.Kill(s.pid("decode-0"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if strings.Contains(string(rest), "[DONE]") || err == nil && !strings.Contains(string(rest), `"error"`) {
		t.Errorf("the stream ended clean (%v): ...%s", err, rest[max(0, len(rest)-200):])
	}
	s.whole("prefill-0")
	s.works() // the next request, once decode is back
	s.whole("decode-0")
}

// TestKillPrefill kills prefill in mid-stream. The pages of the answer were
// proved before its first byte, so it goes on, whole and right, or breaks
// visibly; it is never cut short and called whole.
func TestKillPrefill(t *testing.T) {
	s := startUp(t)
	s.works()
	resp := s.longStream(4000)
	defer resp.Body.Close()
	if err := syscall.Kill(s.pid("prefill-0"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	done := strings.Contains(string(rest), "[DONE]")
	if err == nil && !done && !strings.Contains(string(rest), `"error"`) {
		t.Errorf("the stream ended clean without its end: ...%s", rest[max(0, len(rest)-200):])
	}
	if done && !strings.Contains(string(rest), `"finish_reason":"length"`) {
		t.Error("[DONE] without a finish reason")
	}
	s.works()
	s.whole("decode-0") // it was not restarted
	s.whole("prefill-0")
}

// TestChildrenDie: nothing of up is left when it is killed.
func TestChildrenDie(t *testing.T) {
	s := startUp(t)
	pids := []int{s.pid("prefill-0"), s.pid("decode-0")}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil {
			select {
			case <-look.C:
			case <-deadline.C:
				t.Fatalf("process %d is left", pid)
			}
		}
	}
}
