package assure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs:\n%s", name, got)
	}
}

// TestElsewhere: no call leaves the addresses of the site, by whatever means a case or an
// engine tries; the same call goes through once the site names the address.
func TestElsewhere(t *testing.T) {
	var strangers int
	var mu sync.Mutex
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		strangers++
		mu.Unlock()
		fmt.Fprint(w, `{}`)
	}))
	defer stranger.Close()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, stranger.URL+"/caught", http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(w, `{}`)
	}))
	defer engine.Close()
	probe := func(extra map[string]string) *Probe {
		site := Site{Dialect: upstream.LlamaCPP, Model: "m", Served: "m", Plain: engine.URL, Engines: extra}
		c, err := newClient(&site)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		return &Probe{Site: &site, client: c, cage: newCage()}
	}
	host := strings.TrimPrefix(stranger.URL, "http://")
	p := probe(nil)
	if a := p.Raw(t.Context(), "plain", http.MethodGet, "/here", nil, nil); a.Status != http.StatusOK {
		t.Fatalf("control: a named address gives %s", a.brief())
	}
	if a := p.Raw(t.Context(), "plain", http.MethodGet, "/away", nil, nil); a.Status != http.StatusTemporaryRedirect {
		t.Errorf("a redirect gives %s, want it unfollowed", a.brief())
	}
	if a := p.Raw(t.Context(), "stranger", http.MethodGet, "/", nil, nil); !errors.Is(a.Err, errElsewhere) {
		t.Errorf("an unknown name gives %v", a.Err)
	}
	for _, path := range []string{"@" + host + "/", "//" + host + "/", "/@" + host, host} {
		p.Raw(t.Context(), "plain", http.MethodGet, path, nil, nil)
	}
	if a := p.client.open(t.Context(), call{method: http.MethodGet, base: stranger.URL, path: "/"}).Rest(); !errors.Is(a.Err, errElsewhere) {
		t.Errorf("a call to a base that the site does not name gives %v", a.Err)
	}
	if strangers != 0 {
		t.Fatalf("the stranger was called %d times", strangers)
	}
	if a := probe(map[string]string{"stranger": stranger.URL}).Raw(t.Context(), "stranger", http.MethodGet, "/", nil, nil); a.Status != http.StatusOK || strangers != 1 {
		t.Errorf("control: named, the stranger gives %s after %d calls", a.brief(), strangers)
	}
}

// TestSiteChecks: a site that cannot be tried is refused, and the refusal holds no
// address and no key.
func TestSiteChecks(t *testing.T) {
	good := fakeSite("http://127.0.0.1:1", "http://127.0.0.1:2")
	if err := good.check(); err != nil {
		t.Fatalf("control: %v", err)
	}
	for name, spoil := range map[string]func(*Site){
		"no model":        func(s *Site) { s.Model = "" },
		"no engine":       func(s *Site) { s.Plain = "" },
		"half a pair":     func(s *Site) { s.Dialect, s.Prefill = upstream.SGLangPD, s.Plain },
		"one key":         func(s *Site) { s.Keys = s.Keys[:1] },
		"one key twice":   func(s *Site) { s.Keys[1] = s.Keys[0] },
		"no scheme":       func(s *Site) { s.Router = "secret-host:80" },
		"a credential":    func(s *Site) { s.Router = "http://user:secret-word@secret-host" },
		"another scheme":  func(s *Site) { s.Gateway = "file:///secret-host" },
		"a query":         func(s *Site) { s.Engines = map[string]string{"m": "http://secret-host/?a=b"} },
		"not a URL":       func(s *Site) { s.Plain = "http://secret-host:port%%" },
		"model unserved":  func(s *Site) { s.Served = "" },
		"twice among ten": func(s *Site) { s.Keys = []string{"key-a-secret-word", "k2", "key-a-secret-word"} },
	} {
		s := fakeSite("http://127.0.0.1:1", "http://127.0.0.1:2")
		spoil(&s)
		err := s.check()
		if err == nil {
			t.Errorf("%s is taken", name)
		} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "key-of") {
			t.Errorf("%s: the error tells: %v", name, err)
		}
		if _, err := Run(t.Context(), s, Options{}); err == nil {
			t.Errorf("%s: it was run", name)
		}
	}
}

// TestCanaries: a part of a canary in a stranger's answer is found, in its owner's it is
// not, and chance does not make one.
func TestCanaries(t *testing.T) {
	c := newCage()
	mine, theirs := c.mint(0), c.mint(1)
	if mine == theirs || strings.Count(mine, "-") != canaryLength-1 {
		t.Fatal("the canaries are not what they should be")
	}
	part := theirs[len(theirs)/2-10 : len(theirs)/2+10]
	for _, try := range []struct {
		name, text string
		tenant     int
		want       int // length of the hit
	}{
		{"whole", "so " + theirs + " it is", 0, len(theirs)},
		{"part", "so" + part + "!", 0, 20},
		{"upper case", strings.ToUpper(part), 0, 20},
		{"own", "so " + mine + " it is", 0, 0},
		{"too short", theirs[:minHit-1], 0, 0},
		{"just enough", theirs[:minHit], 0, minHit},
		{"its owner", theirs, 1, 0},
		{"nothing", strings.Repeat("the quick brown fox ", 200), 0, 0},
	} {
		hits := c.find(try.text, try.tenant)
		got := 0
		if len(hits) > 0 {
			got = hits[0].Length
			if hits[0].Owner == try.tenant {
				t.Errorf("%s: a hit of its owner's", try.name)
			}
		}
		if got < try.want || got > try.want+2 { // a neighbour may match by chance
			t.Errorf("%s: %d characters, want %d", try.name, got, try.want)
		}
	}
	for range 60 {
		text := c.mint(2)
		if hits := c.find(text, 2); hits != nil {
			t.Fatalf("a canary has %s", hits[0])
		}
	}
	said := c.scrub("it reads " + theirs + " and " + strings.ToUpper(mine))
	if c.find(said, 3) != nil || !strings.Contains(said, c.fingerprint(theirs)) {
		t.Errorf("scrubbed: %s", said)
	}
	if newCage().fingerprint(theirs) == c.fingerprint(theirs) {
		t.Error("the fingerprint has no key")
	}
}

// quick makes a case that gives one verdict.
func quick(name string, v Verdict) Case {
	return Case{Name: name, Title: "it leaks", Rules: []string{"G-1"}, Dialects: []upstream.Dialect{upstream.LlamaCPP},
		Run: func(context.Context, *Probe) Verdict { return v }}
}

// TestRunner: what the runner makes of verdicts, consent, time and interruption.
func TestRunner(t *testing.T) {
	ok := Verdict{Outcome: Green, Why: "refused", Control: "a plain request gets 200"}
	forever := quick("forever", Verdict{})
	forever.Run = func(ctx context.Context, _ *Probe) Verdict { <-ctx.Done(); return ok }
	deadly := quick("deadly", ok)
	deadly.Kills = true
	teller := quick("teller", Verdict{})
	var secret string
	teller.Run = func(_ context.Context, p *Probe) Verdict {
		secret = p.Canary(0)
		return Verdict{Outcome: Red, Why: "it said " + secret, Control: "before it said " + secret[:20]}
	}
	uncontrolled := quick("uncontrolled", Verdict{Outcome: Green, Why: "refused"})
	direct := quick("direct", ok)
	direct.Ways = []Way{Direct}
	other := quick("other", ok)
	other.Dialects = []upstream.Dialect{upstream.VLLM}
	cases := []Case{deadly, quick("fine", ok), forever, teller, uncontrolled, quick("silent", Verdict{}), direct, other}
	synctest.Test(t, func(t *testing.T) {
		site := fakeSite("http://127.0.0.1:1", "http://127.0.0.1:2")
		var told []string
		r, err := Run(t.Context(), site, Options{Cases: cases, After: func(r Result) { told = append(told, r.Case) }})
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]Outcome{"deadly": Skip, "fine": Green, "forever": Void, "teller": Red, "uncontrolled": Void, "silent": Void} {
			for _, w := range []Way{Direct, Bulkhead} {
				if got, ok := r.Of(name, w); !ok || got.Outcome != want {
					t.Errorf("%s, %s: %s, want %s", name, w, got.Outcome, want)
				}
			}
		}
		if _, ok := r.Of("direct", Bulkhead); ok {
			t.Error("a case was run on a way that it has not")
		}
		if _, ok := r.Of("other", Direct); ok {
			t.Error("a case of another dialect was run")
		}
		if told[len(told)-1] != "deadly" || len(told) != len(r.Results) {
			t.Errorf("told in the order %v", told)
		}
		var out bytes.Buffer
		r.Print(&out, Colored)
		if err := r.JSON(&out); err != nil {
			t.Error(err)
		}
		r.Markdown(&out)
		if strings.Contains(out.String(), secret[:minHit]) || !strings.Contains(out.String(), "it said [") {
			t.Error("the report tells a canary, or nothing of it")
		}
		if strings.Contains(out.String(), site.Keys[0]) {
			t.Error("the report tells a key")
		}
		if r.Pass() {
			t.Error("a report with RED and VOID passes")
		}
		if r, _ := Run(t.Context(), site, Options{Cases: cases, Only: []string{"deadly"}, Kills: true}); !r.Pass() || r.Count(Direct, Green) != 1 {
			t.Error("with consent it was not run")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if r, _ := Run(ended, site, Options{Cases: cases}); r.Count(Direct, Skip) == 0 || r.Count(Direct, Green) != 0 || r.Pass() {
			t.Error("after the end something was run")
		}
	})
	site := fakeSite("http://127.0.0.1:1", "")
	site.Keys = nil
	for name, o := range map[string]Options{
		"a name that no case has": {Cases: cases, Only: []string{"none"}},
		"a way without address":   {Cases: cases, Ways: []Way{Bulkhead}},
		"no case":                 {Cases: []Case{other}},
	} {
		if _, err := Run(t.Context(), site, o); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestPrinted holds the forms of a report to golden files.
func TestPrinted(t *testing.T) {
	result := func(name string, w Way, o Outcome, why, control string) Result {
		return Result{Case: name, Title: "one tenant reads another's answer", Rules: []string{"G-1", "G-7"}, Way: w, Outcome: o, Why: why, Control: control, Millis: 1234}
	}
	r := Report{Schema: Schema, Dialect: "llamacpp", Model: "small", Began: time.Date(2026, 12, 1, 14, 30, 0, 0, time.UTC), Ways: []Way{Direct, Bulkhead},
		Results: []Result{
			result("llama-slot-chat", Direct, Red, "the victim's answer holds 71 of 71 characters of a secret of tenant 0 [93b31ad4]; the thief's requests got 200",
				"undisturbed, the victim's stream has 56 characters and none of the thief's"),
			result("llama-slot-chat", Bulkhead, Green, "the victim's answer is what it is undisturbed; the thief's requests got 400 reserved_field",
				"undisturbed, the victim's stream has 56 characters and none of the thief's"),
			result("llama-cut", Direct, Skip, "it may end an engine, and nobody agreed to that", ""),
			result("llama-cached-tokens", Direct, Red, "110 cached tokens for the other tenant's prompt, 24 for a fresh one", "the cache is on"),
			result("llama-cached-tokens", Bulkhead, Void, "the first tenant's prompt gets 503 not_ready", ""),
		}}
	var plain, colored, page, object bytes.Buffer
	r.Print(&plain, Plain)
	r.Print(&colored, Colored)
	r.Markdown(&page)
	if err := r.JSON(&object); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", plain.Bytes())
	golden(t, "report.md", page.Bytes())
	golden(t, "report.json", object.Bytes())
	if strings.Contains(plain.String(), "\x1b") || !strings.Contains(colored.String(), "\x1b[1;31mRED") {
		t.Error("the colours are not where they belong")
	}
	for _, line := range strings.Split(plain.String(), "\n") {
		if len([]rune(line)) > lineWidth+2 {
			t.Errorf("a line of %d characters", len([]rune(line)))
		}
	}
	for i := range r.Results {
		r.Results[i].Withheld = r.Results[i].Case == "llama-slot-chat"
	}
	var less bytes.Buffer
	r.Markdown(&less)
	if strings.Contains(less.String(), "llama-slot-chat") || !strings.Contains(less.String(), "llama-cut") {
		t.Errorf("a withheld case is on the page, or too much is withheld:\n%s", less.String())
	}
	var back Report
	if err := json.Unmarshal(object.Bytes(), &back); err != nil || !slices.EqualFunc(back.Results, r.Results, func(a, b Result) bool {
		return a.Case == b.Case && a.Way == b.Way && a.Outcome == b.Outcome && a.Why == b.Why
	}) {
		t.Errorf("read back it differs (%v)", err)
	}
	if r.Pass() {
		t.Error("a VOID passes")
	}
}

// TestNames: every case says what it is, once.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if c.Name == "" || c.Title == "" || len(c.Rules) == 0 || len(c.Dialects) == 0 || c.Run == nil {
			t.Errorf("case %q is not complete", c.Name)
		}
		if seen[c.Name] {
			t.Errorf("two cases are called %s", c.Name)
		}
		seen[c.Name] = true
	}
	if len(seen) == 0 {
		t.Error("there are no cases")
	}
}
