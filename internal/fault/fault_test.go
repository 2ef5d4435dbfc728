package fault

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/errors.md from the registry")

const secret = "cnry-7f3a9c51e2b84d06 the vault code"

func TestRegistry(t *testing.T) {
	codeForm := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[Code]bool{}
	for _, r := range registry {
		if seen[r.code] {
			t.Errorf("%s: registered twice", r.code)
		}
		seen[r.code] = true
		if !codeForm.MatchString(string(r.code)) {
			t.Errorf("%s: a code is lower case, digits and _", r.code)
		}
		if r.status < 400 || r.status > 599 {
			t.Errorf("%s: status %d", r.code, r.status)
		}
		if (r.status >= 500) != (r.kind == Server) {
			t.Errorf("%s: status %d does not go with type %s", r.code, r.status, r.kind)
		}
		for _, s := range []string{r.sentence, r.hint} {
			if !strings.HasSuffix(s, ".") || strings.Contains(s, "|") {
				t.Errorf("%s: %q must be a sentence that fits a table", r.code, s)
			}
		}
		if strings.Count(r.sentence, "{") != strings.Count(r.sentence, "}") {
			t.Errorf("%s: unbalanced placeholder in %q", r.code, r.sentence)
		}
		if r.client != "" {
			c, ok := lookup(r.client)
			if !ok || c.client != "" {
				t.Errorf("%s: client code %q must be registered and final", r.code, r.client)
			}
		}
	}
}

func TestBodyShape(t *testing.T) {
	e := New(OutOfRange, Field("temperature"), Num(0), Num(2.5)).WithID("req-1")
	var got map[string]map[string]any
	if err := json.Unmarshal(e.Body(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"message": "The field temperature must be from 0 to 2.5.",
		"type":    "invalid_request_error", "param": "temperature", "code": "value_out_of_range",
		"hint": "Choose a value in that range.", "id": "req-1",
	}
	if len(got["error"]) != len(want) {
		t.Fatalf("fields: %v", got["error"])
	}
	for k, v := range want {
		if got["error"][k] != v {
			t.Errorf("%s = %v, want %v", k, got["error"][k], v)
		}
	}
	if b := string(New(Busy).Body()); !strings.Contains(b, `"param":null`) || !strings.Contains(b, `"id":null`) {
		t.Errorf("absent param and id must be null: %s", b)
	}
}

// TestUpwards: a bound that is the largest number there is is not printed.
func TestUpwards(t *testing.T) {
	for high, want := range map[int64]string{
		16:            "The field n must be from 1 to 16.",
		math.MaxInt64: "The field n must be from 1 upwards.",
	} {
		if got := New(OutOfRange, Field("n"), Int(1), Int(high)).Message; got != want {
			t.Errorf("%d: %q, want %q", high, got, want)
		}
	}
}

func TestNewIsTotal(t *testing.T) {
	if e := New("no_such_code", Field("x")); e.Code != Internal || e.Status != 500 || e.Param != "" {
		t.Errorf("unregistered code: %+v", e)
	}
	if e := New(TooLong); e.Message != "The prompt has (unknown) tokens; this worker takes at most (unknown)." {
		t.Errorf("missing numbers must be shown as unknown: %q", e.Message)
	}
	if e := New(TooLong, AtLeast(900), Int(671)); e.Message != "The prompt has at least 900 tokens; this worker takes at most 671." {
		t.Errorf("%q", e.Message)
	}
	e := New(Busy)
	if other := e.WithID("req-2"); e.ID != "" || other.ID != "req-2" {
		t.Error("WithID must not change its receiver")
	}
}

func TestFieldHidesWhatIsNoPlainName(t *testing.T) {
	for _, tc := range []struct{ path, want string }{
		{"messages[12].content[0].cache_control", "messages[12].content[0].cache_control"},
		{secret, "(a field whose name has 36 bytes)"},
		{"", "(a field with an empty name)"},
		{"a\"b", "(a field whose name has 3 bytes)"},
		{"é", "(a field whose name has 2 bytes)"},
		{strings.Repeat("a", 96), strings.Repeat("a", 96)},
		{strings.Repeat("a", 97), "(a field whose name has 97 bytes)"},
	} {
		if e := New(UnknownField, Field(tc.path)); e.Param != tc.want || !strings.Contains(e.Message, tc.want) {
			t.Errorf("Field(%q) = %q in %q", tc.path, e.Param, e.Message)
		}
	}
}

func TestParseReadsBackWhatWeWrote(t *testing.T) {
	for _, e := range []*Error{
		New(TooLong, Int(900), Int(671)),
		New(TooLong, AtLeast(900), Int(671)),
		New(PoolExceeded, Int(1<<62), Int(0)),
		New(PoolExceeded),
		New(Integrity),
		New(LegsDisagree),
		New(UnknownField, Field("messages[0].x")),
		New(PromptOverWindow, Int(7), Int(6)),
	} {
		got := Parse(e.Status, e.WithID("their-id").Body())
		if *got != *e {
			t.Errorf("Parse = %+v\n want %+v", got, e)
		}
	}
	for _, r := range registry {
		if got := Parse(r.status, New(r.code).Body()); got.Code != r.code {
			t.Errorf("%s came back as %s", r.code, got.Code)
		}
	}
}

func TestParseOfForeignBodies(t *testing.T) {
	long := `{"error":{"code":"busy","message":"` + strings.Repeat("x", maxParsed) + `"}}`
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   Code
	}{
		{"empty", 400, "", BadInput},
		{"text", 500, secret, EngineFailed},
		{"flat, as SGLang sends it", 400, `{"object":"error","message":"` + secret + `","type":"BadRequestError","code":400}`, BadInput},
		{"number as code", 400, `{"error":{"message":"` + secret + `","code":400}}`, BadInput},
		{"code of nobody", 429, `{"error":{"code":"` + secret + `"}}`, Busy},
		{"right code, free text", 400, `{"error":{"code":"too_long","message":"` + secret + `"}}`, TooLong},
		{"right code, secret as number", 400, `{"error":{"code":"too_long","message":"The prompt has ` + secret + ` tokens; this worker takes at most 5."}}`, TooLong},
		{"right code, secret as param", 400, `{"error":{"code":"bad_input","message":"","param":"` + secret + `"}}`, BadInput},
		{"right code, secret after the sentence", 400, `{"error":{"code":"too_long","message":"The prompt has 9 tokens; this worker takes at most 5.` + secret + `"}}`, TooLong},
		{"status contradicts the code", 500, string(New(TooLong, Int(9), Int(5)).Body()), EngineFailed},
		{"no status, as in a stream", 0, string(New(Integrity).Body()), Integrity},
		{"too long to read", 503, long, Busy},
		{"array", 504, `[]`, Deadline},
		{"401", 401, "", BadPass},
		{"409", 409, "{", DuplicateAttempt},
		{"499", 499, "null", Cancelled},
		{"redirect", 302, "", EngineFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Parse(tc.status, []byte(tc.body))
			if got.Code != tc.want {
				t.Errorf("code %s, want %s", got.Code, tc.want)
			}
			if s := string(got.Body()); strings.Contains(s, "cnry-7f3a9c51e2b84d06") {
				t.Errorf("foreign text got through: %s", s)
			}
		})
	}
}

func TestForClient(t *testing.T) {
	for _, c := range []Code{BadPass, ExpiredPass, DuplicateAttempt, RoomUnknownPeer} {
		got := New(c).WithID("req-3").ForClient()
		if got.Code != UpstreamRefused || got.Status != 502 || got.ID != "req-3" {
			t.Errorf("%s: %+v", c, got)
		}
	}
	e := New(TooLong, Int(9), Int(5))
	if e.ForClient() != e {
		t.Error("an error that is the client's own must stay as it is")
	}
}

func TestErrorsDocument(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "errors.md")
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run go test ./internal/fault -rewrite", err)
	}
	if string(got) != Markdown() {
		t.Error("docs/errors.md is not what the registry says; run go test ./internal/fault -rewrite and read the diff")
	}
	for _, c := range Codes() {
		if !strings.Contains(string(got), "| `"+string(c)+"` |") {
			t.Errorf("docs/errors.md lacks %s", c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(400, []byte(`{"error":{"code":"too_long","message":"The prompt has 9 tokens; this worker takes at most 5.","param":"a"}}`))
	f.Add(500, []byte(secret))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := Parse(status, body)
		if _, ok := lookup(e.Code); !ok {
			t.Fatalf("unregistered code %q", e.Code)
		}
		if !json.Valid(e.Body()) || len(e.Body()) > 2048 {
			t.Fatalf("body of %d bytes", len(e.Body()))
		}
	})
}
