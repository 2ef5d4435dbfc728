package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// TestEngine holds that both arms answer rightly, that time is booked where it was
// spent, and that the arms differ: a page that arrives wrong is refused in one and
// read in the other.
func TestEngine(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text, want := recitation(300, 16, 1)
	prompt := llm.Bytes{}.Text(text)
	if len(prompt) != 300 || len(want) != 16 {
		t.Fatalf("a prompt of %d tokens and %d to recite", len(prompt), len(want))
	}
	byTCP, end := tcpMover()
	defer end()
	spoil := func(e *engine, s *kv.Sequence, r *kv.Reservation) error {
		segments, rows := s.Segments(0)
		wrong := bytes.Clone(segments[0])
		wrong[len(wrong)/2] ^= 1
		if _, err := e.decode.pool.Landing().Land(r.Key(), 0, rows, &onWire{[][]byte{wrong}}); err != nil {
			return err
		}
		for i := 1; i < r.Pages(); i++ {
			segments, rows := s.Segments(i)
			if _, err := e.decode.pool.Landing().Land(r.Key(), i, rows, &onWire{segments}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, alg := range []digest.Algorithm{digest.XXH3, digest.GMAC} {
		for name, move := range map[string]mover{"memory": copyPages, "tcp": byTCP, "spoilt": spoil} {
			if name == "tcp" && alg != digest.XXH3 {
				continue // a mover has one engine
			}
			e, err := newEngine(400, alg, move)
			if err != nil {
				t.Fatal(err)
			}
			l, answer, err := e.serve(prompt, 16, guarded)
			switch {
			case name == "spoilt" && !errors.Is(err, kv.ErrDigest):
				t.Errorf("%v: a spoilt page: %v", alg, err)
			case name != "spoilt" && (err != nil || !recites(answer, want)):
				t.Errorf("%v, %s: %v", alg, name, err)
			}
			if name == "spoilt" {
				if e, err = newEngine(400, alg, move); err != nil {
					t.Fatal(err)
				}
				if _, _, err := e.serve(prompt, 16, unguarded); err != nil {
					t.Errorf("%v: a spoilt page with the guards off: %v", alg, err)
				}
				continue
			}
			for p, x := range l {
				if x.wall <= 0 {
					t.Errorf("%v, %s: part %d took no time", alg, name, p)
				}
			}
			if _, answer, err = e.serve(prompt, 16, unguarded); err != nil || !recites(answer, want) {
				t.Errorf("%v, %s, guards off: %v", alg, name, err)
			}
			if !e.prefill.pool.Whole() || !e.decode.pool.Whole() {
				t.Errorf("%v, %s: the pools are not whole at rest", alg, name)
			}
		}
	}
	if recites([]llm.Token{'a', 'b'}, []byte("ac")) || recites([]llm.Token{'a'}, []byte("ab")) {
		t.Error("a wrong answer recites")
	}
}

// TestWays holds that every way moves the bytes that it is asked to move.
func TestWays(t *testing.T) {
	m, err := newStore()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways() {
		if w.streams == 1 && !w.bare {
			continue // they differ in nothing but a number
		}
		c, err := m.carrier(w)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.carry(movePages); err != nil {
			t.Errorf("%s: %v", w.what, err)
		}
		c.close()
		if !m.target.Whole() {
			t.Errorf("%s: the target is not whole at rest", w.what)
		}
		if w.bare {
			if n := len(m.to) / 2; !bytes.Equal(m.to[:n], m.from[:n]) {
				t.Errorf("%s: other bytes arrived", w.what)
			}
			clear(m.to)
		}
	}
	j, err := newJoint(1, wire.PlainData, moveLayout(), m.target.Landing(), 2*movePages)
	if err != nil {
		t.Fatal(err)
	}
	j.Link.Close(nil)
	broken := &handOffs{way: way{alg: digest.XXH3, streams: 1}, store: m, joint: j}
	if err := broken.carry(movePages); err == nil {
		t.Error("pages arrived over a link that was closed")
	}
	broken.close()
}

// TestStage holds that each contender of this project answers each kind of request in
// full: what is compared is the same work.
func TestStage(t *testing.T) {
	dir := t.TempDir()
	programs, err := find(t.Context(), dir, "", withoutRouters, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"plain_c1", "pd_c1"} {
		all := rows()
		r := &all[slices.IndexFunc(all, func(r row) bool { return r.id == id })]
		x, err := settings{scale: 1, foreign: programs, says: io.Discard}.set(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{nameSGLang, nameSMG, nameVLLM} {
			if x.find(name) != nil || x.missing[name] == "" {
				t.Errorf("%s was not asked for, and nobody says that it is not there", name)
			}
		}
		if want := 4 + len(programs.Programs)*len(r.only(plainRoute)) + len(r.only(pdRoute)); len(x.stands) != want {
			t.Errorf("%s: %d contenders, want %d: missing %v", id, len(x.stands), want, x.missing)
		}
		for _, c := range x.stands {
			for name, k := range map[string]struct {
				body   []byte
				events int
			}{"small": {shortBody(), 0}, "stream": {streamBody(), streamEvents}, "large": {largeBody(), 0}} {
				call, err := post(c.addr, c.key, k.body).dial()
				if err != nil {
					t.Fatal(err)
				}
				if err := call.call(); err != nil {
					t.Fatalf("%s, %s, %s: %v", id, c.name, name, err)
				}
				_ = call.conn.Close()
				checkAnswer(t, c.name+", "+name, call.body, k.events)
			}
			if err := x.turn(c, span{calls: 40}); err != nil || len(c.samples) != 1 || c.samples[0].p50 <= 0 || c.samples[0].rate <= 0 {
				t.Errorf("%s, %s: %+v, %v", id, c.name, c.samples, err)
			}
			own := c.name != nameDirect && c.name != nameAgain
			if rss := c.peakRSS(); runtime.GOOS == "linux" && own != (c.samples[0].cpu > 0 && rss > 1<<20) {
				t.Errorf("%s, %s used %v, %v bytes", id, c.name, c.samples[0].cpu, rss)
			}
		}
		var f found
		r.read(x, &f)
		if len(f.Figures) != 1 || f.Figures[0].Value == nil || f.Figures[0].Budget == nil || f.Figures[0].Control == nil {
			t.Errorf("%s: figures %+v", id, f.Figures)
		}
		if len(byRow(f.Cells)) != 1 || len(byRow(f.Cells)[0].targets) != len(x.stands) || len(f.Absent) < 3 {
			t.Errorf("%s: %d cells, absent %v", id, len(f.Cells), f.Absent)
		}
		x.drop(nameOurs, errGone)
		if x.find(nameOurs) != nil || x.missing[nameOurs] == "" {
			t.Error("who was dropped is still there")
		}
		scratch := x.dir
		if err := x.strike(); err != nil {
			t.Errorf("strike: %v", err)
		}
		if _, err := os.Stat(scratch); err == nil {
			t.Error("the scratch folder is still there")
		}
	}
	if c, err := startChild(t.Context(), served{Role: "nobody"}); err == nil {
		_ = c.stop()
		t.Error("a server of no kind started")
	}
}

func checkAnswer(t *testing.T, name string, body []byte, events int) {
	t.Helper()
	if events > 0 {
		if n := bytes.Count(body, []byte("data: ")); n != events || !bytes.HasSuffix(body, []byte(endsStream)) {
			t.Errorf("%s: %d events, ending in %q", name, n, body[max(0, len(body)-40):])
		}
		return
	}
	var v struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(body, &v); err != nil || len(v.Choices) != 1 || v.Choices[0].Message.Content != answerText || v.Usage.Prompt != promptTokens {
		t.Errorf("%s: %v, %.200s", name, err, body)
	}
}

// only counts one for a row of that route.
func (r *row) only(want route) []struct{} {
	if r.route == want {
		return make([]struct{}, 1)
	}
	return nil
}

// TestLeg holds what routers and the gateway look for in a worker.
func TestLeg(t *testing.T) {
	for role, want := range map[string]struct{ path, has string }{
		legPrefill: {"/server_info", `"disaggregation_mode":"prefill"`},
		legDecode:  {"/v1/models", `"owned_by":"sglang"`},
		legPlain:   {"/v1/loads?include=core", `"loads":[`},
	} {
		l, err := newLeg(role)
		if err != nil {
			t.Fatal(err)
		}
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			l.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			return w
		}
		if w := get(want.path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want.has) {
			t.Errorf("%s: %d %s", want.path, w.Code, w.Body)
		}
		if w := get("/health"); w.Code != http.StatusOK {
			t.Errorf("/health: %d", w.Code)
		}
		if w := get("/version"); w.Code != http.StatusNotFound {
			t.Errorf("/version: %d: smg takes it for vLLM", w.Code)
		}
		for name, body := range map[string]string{
			"behind": `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}],"rid":"abc","kv_transfer_params":{},"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
			"before": `{"rid":"abc","kv_transfer_params":{},"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true},"messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}]}`,
		} {
			w := httptest.NewRecorder()
			l.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
			got := w.Body.String()
			if role == legPrefill {
				if !strings.Contains(got, `"id":"abc"`) || !strings.Contains(got, `"kv_transfer_params":{"do_remote_prefill":true`) || !json.Valid(w.Body.Bytes()) {
					t.Errorf("%s, %s: %s", role, name, got)
				}
				continue
			}
			if strings.Count(got, `"id":"abc"`) != streamEvents-1 || strings.Count(got, `"usage"`) != streamEvents-3 || strings.Count(got, `"finish_reason":"stop"`) != 1 {
				t.Errorf("%s, %s: %s", role, name, got)
			}
		}
		w := httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"messages":[`)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("half a request: %d", w.Code)
		}
	}
}

// TestWorkers holds the control of the latency comparison, and that a stream of
// each arm has its length.
func TestWorkers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := guardsCount(ctx); err != nil {
		t.Fatal(err)
	}
	pairs, stop, err := startPairs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for arm, p := range pairs {
		got, err := p.gaps(ctx, 40)
		if err != nil || len(got) != 2 || got[0] < got[1] || got[1] < 0 {
			t.Errorf("arm %d: %v, %v", arm, got, err)
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := pairs[armOn].gaps(ended, 40); err == nil {
		t.Error("a stream without a client went well")
	}
}

// TestCheck holds that a stream which is not the one asked for is noticed.
func TestCheck(t *testing.T) {
	w := &workers{recited: []byte("abc")}
	event := func(text, finish string) string {
		return `data: {"choices":[{"text":"` + text + `","finish_reason":` + finish + "}]}\n\n"
	}
	for name, c := range map[string]struct {
		stream string
		want   error
	}{
		"right":         {event("ab", "null") + event("cd", `"length"`) + "data: [DONE]\n\n", nil},
		"other text":    {event("ax", "null") + event("cd", `"length"`), errAnswer},
		"stopped early": {event("abcd", `"stop"`), errShort},
		"cut":           {event("abcd", "null"), errShort},
		"failed":        {event("ab", "null") + "data: {\"error\":{}}\n\n", errShape},
	} {
		if err := w.check([]byte(c.stream)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
