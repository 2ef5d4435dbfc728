package gateway

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the results into testdata")

// counting gives bytes that count up, so that ids are the same in every run.
type counting struct{ n byte }

func (c *counting) Read(b []byte) (int, error) {
	for i := range b {
		c.n++
		b[i] = c.n
	}
	return len(b), nil
}

// story is a golden file: sections under `-- name --` lines. Request and what the legs
// say are given; what the legs got and what the client got are results.
type story struct {
	names []string
	text  map[string]string
}

func readStory(t *testing.T, path string) *story {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{text: map[string]string{}}
	name := "about"
	s.names = append(s.names, name)
	for line := range strings.Lines(string(b)) {
		if title, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(title, " --") {
			name = strings.TrimSuffix(title, " --")
			s.names = append(s.names, name)
			continue
		}
		s.text[name] += line
	}
	return s
}

func (s *story) String() string {
	var b strings.Builder
	for i, name := range s.names {
		if i > 0 {
			fmt.Fprintf(&b, "-- %s --\n", name)
		}
		b.WriteString(s.text[name])
	}
	return b.String()
}

// says is a leg that says what the story gives: a status line and a body, in which RID
// stands for the id that the leg was given. It speaks when both legs were called.
func (s *story) says(name string, called *sync.WaitGroup) script {
	text := s.text[name]
	return func(w http.ResponseWriter, r *http.Request, c call) {
		called.Done()
		called.Wait()
		head, body, _ := strings.Cut(strings.ReplaceAll(text, "RID", c.id), "\n")
		status, kind := 0, ""
		if _, err := fmt.Sscan(head, &status, &kind); err != nil {
			panic(fmt.Sprintf("%s: %q: %v", name, head, err))
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// TestStories plays every story: a client's bytes in, the legs' bytes and the client's
// answer out. Untouched bytes must stay as they are (G-4).
func TestStories(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d stories, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := readStory(t, path)
			want := s.String()
			r := newRig(t, func(c *Config) { c.Random = &counting{} })
			var called sync.WaitGroup
			called.Add(2)
			r.prefill.set(s.says("prefill says", &called))
			r.decode.set(s.says("decode says", &called))
			head, body, _ := strings.Cut(s.text["request"], "\n")
			method, target, _ := strings.Cut(head, " ")
			a := r.send(r.request(method, target, strings.TrimSuffix(body, "\n")))
			e := r.event()
			for _, leg := range []*scripted{r.prefill, r.decode} {
				name := leg.role + " gets"
				if _, there := s.text[name]; there {
					s.text[name] = "nothing\n"
				}
				for _, c := range leg.got() {
					s.text[name] = string(c.raw) + "\n"
				}
			}
			s.text["client gets"] = fmt.Sprintf("%d %s verdict=%s dropped=%q\n%s\n", a.status, a.header.Get("Content-Type"),
				a.header.Get(headerVerdict), a.header.Get(headerDropped), strings.TrimSuffix(a.body, "\n"))
			s.text["event"] = fmt.Sprintf("%s code=%q agreement=%s attempts=%d prompt=%v completion=%v\n", e.Verdict, e.Code, e.Agreement, e.Attempts, e.Prompt, e.Completion)
			if got := s.String(); got != want {
				if !*rewrite {
					t.Fatalf("got\n%s\nwant\n%s", got, want)
				}
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
