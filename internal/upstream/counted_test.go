package upstream

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadCount(t *testing.T) {
	for _, tc := range []struct {
		d    Dialect
		file string
		want int64
	}{
		{VLLM, "vllm/0.32.0/tokenize-chat.json", 37},
		{SGLangPD, "sglang/0.5.19/tokenize-chat.json", 37},
		{SGLang, "sglang/0.5.20/tokenize-prompt.json", 5},
		{LlamaCPP, "llamacpp/10434/input-tokens.json", 35},
		{LlamaCPP, "llamacpp/11549/tokenize.json", 5},
	} {
		body, err := os.ReadFile(filepath.Join("testdata", filepath.FromSlash(tc.file)))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := ReadCount(tc.d, 200, body); err != nil || n != tc.want {
			t.Errorf("%s: %d, %v; want %d", tc.file, n, err, tc.want)
		}
		if _, err := ReadCount(tc.d, 500, body); err == nil {
			t.Errorf("%s: a failure is read as a count", tc.file)
		}
		if _, err := ReadCount(tc.d, 200, body[:len(body)-2]); err == nil {
			t.Errorf("%s: a cut answer is read as a count", tc.file)
		}
	}
	for _, body := range []string{``, `{}`, `null`, `[]`, `{"count":"5"}`, `{"count":-1}`, `{"count":1.5}`, `{"count":5,"count":5}`,
		`{"count":5,"tokens":[1]}`, `{"count":5,"input_tokens":5}`, `{"tokens":5}`, `{"count":5} x`, `{"error":{"message":"x"}}`, `{"count":99999999999999}`} {
		if n, err := ReadCount(VLLM, 200, []byte(body)); err == nil {
			t.Errorf("%s is read as %d", body, n)
		}
	}
	if n, err := ReadCount(VLLM, 200, []byte(` {"count":2,"tokens":[1,2]} `)); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}
