package upstream

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewriteLegs = flag.Bool("rewrite-legs", false, "write the legs in testdata/legs anew; read the diff")

// legCase is one golden file: a client's body, and the calls that it becomes.
type legCase struct {
	Endpoint string   `json:"endpoint"`
	Grants   []string `json:"grants,omitempty"`
	Shadow   []string `json:"shadow,omitempty"`
	Domains  []string `json:"domains,omitempty"`
	Body     string   `json:"body"`
	Calls    []legOf  `json:"calls"`
	Dropped  []string `json:"dropped,omitempty"`
	Mapped   []string `json:"mapped,omitempty"`
	Shadowed []string `json:"shadowed,omitempty"`
}

type legOf struct {
	Role     Role     `json:"role"`
	Sequence int      `json:"sequence"`
	Path     string   `json:"path"`
	Headers  []string `json:"headers,omitempty"`
	Body     string   `json:"body"`
}

// goldenControl is what the gateway writes in the golden files.
func goldenControl(d Dialect, role Role, sequence int) Control {
	c := Control{ID: "bh-1", Model: "served", MaxTokens: 9, Seed: 77, Sequence: sequence, Host: `ho"st`, Port: 8998, Room: 1<<63 - 1,
		TransferID: "xfer-1", RemoteAddr: "http://10.0.0.1:8998", RemoteEngine: "engine-1", SafetyID: "tenant-7"}
	if d.Traits().Salted {
		c.Salt = "salt-" + string(role)
		c.Priority = Count{N: 3, Known: true}
	}
	if d == VLLMNixl && role == DecodeRole {
		c.Handle = &Handle{json: []byte(`{"do_remote_prefill":true,"remote_host":"10.0.0.1"}`)}
	}
	return c
}

// goldenLegs are all the calls of a request.
func goldenLegs(d Dialect, r *Request) []legOf {
	roles := []Role{PrefillRole, DecodeRole}
	if d.Traits().Legs == One {
		roles = []Role{Plain}
	}
	sequences := []int{}
	for i := range r.Sequences() {
		sequences = append(sequences, i)
	}
	if d.Traits().Lists == Native && r.Sequences() > 1 {
		sequences = []int{-1}
	}
	var all []legOf
	for _, i := range sequences {
		for _, role := range roles {
			call := r.Leg(d, role, goldenControl(d, role, i))
			c := goldenControl(d, role, i)
			_, edits := r.call(d, role, c)
			if pieces := r.apart(d, role, c, edits); !bytes.Equal(bytes.Join(pieces, nil), call.Body) {
				panic("the pieces are not the body: " + string(bytes.Join(pieces, nil)))
			}
			leg := legOf{Role: role, Sequence: i, Path: call.Path, Body: string(call.Body)}
			for _, h := range call.Headers {
				leg.Headers = append(leg.Headers, h.Name+": "+h.Value)
			}
			all = append(all, leg)
		}
	}
	return all
}

// TestGoldenLegs builds the calls of the bodies in testdata/legs, byte for byte (G-4).
func TestGoldenLegs(t *testing.T) {
	for _, d := range Dialects() {
		files, err := filepath.Glob(filepath.Join("testdata", "legs", d.String(), "*.json"))
		if err != nil || len(files) == 0 {
			t.Errorf("%v has no golden legs (%v)", d, err)
		}
		for _, file := range files {
			t.Run(d.String()+"/"+filepath.Base(file), func(t *testing.T) { goldenFile(t, d, file) })
		}
	}
}

func goldenFile(t *testing.T, d Dialect, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c legCase
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	e := Chat
	if c.Endpoint == "completions" {
		e = Completions
	}
	r, fail := takeUnder(Policy{Dialect: d, Grants: c.Grants, Shadow: c.Shadow, Domains: c.Domains}, e, c.Body)
	if fail != nil {
		t.Fatalf("refused: %v", fail)
	}
	got := c
	got.Calls, got.Dropped, got.Mapped, got.Shadowed = goldenLegs(d, r), r.Dropped, r.Mapped, r.Shadowed
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(got); err != nil {
		t.Fatal(err)
	}
	if *rewriteLegs {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("not the legs of %s; got\n%s", file, out.Bytes())
	}
	for _, leg := range got.Calls {
		if ok, bad := valid([]byte(leg.Body)); !ok || bad != fine {
			t.Errorf("not JSON: %s", leg.Body)
		}
	}
}

// TestPieces holds that a long prompt is not copied, and that what is small or would be
// cut apart too often is in one piece.
func TestPieces(t *testing.T) {
	long := strings.Repeat("a", small)
	many := strings.Repeat(`,{"role":"user","content":"a","refusal":null}`, maxPieces+1)
	for _, c := range []struct {
		name, content, more string
		sent                bool // the prompt is sent from where it lies
	}{
		{"small", "a", "", false},
		{"long", long, "", true},
		{"cut in many places", long, many, false},
	} {
		body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + c.content + `"}` + c.more + `]}`)
		b, err := Scan(Chat, body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Judge(Policy{})
		if err != nil {
			t.Fatal(err)
		}
		_, pieces := r.Pieces(Bulkhead, DecodeRole, control())
		last := pieces[len(pieces)-1]
		if sent := &last[len(last)-1] == &body[len(body)-1]; sent != c.sent || sent != (len(pieces) > 1) {
			t.Errorf("%s: %d pieces, the prompt from where it lies: %t", c.name, len(pieces), sent)
		}
		if call := r.Leg(Bulkhead, DecodeRole, control()); !bytes.Equal(bytes.Join(pieces, nil), call.Body) {
			t.Errorf("%s: the pieces are not the body", c.name)
		}
	}
}
