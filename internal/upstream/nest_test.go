package upstream

import (
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

// TestNesting holds that no text reaches an engine's compiler of grammars, patterns and
// schemas whose brackets nest deeper than the bound, whatever field, escape or string it
// comes in (G-1, G-14).
func TestNesting(t *testing.T) {
	nest := func(n int) string { return strings.Repeat("(", n) + "a" + strings.Repeat(")", n) }
	escaped := func(n int) string { return strings.Repeat(`\u0028`, n) + "a" + strings.Repeat(")", n) }
	// Escaped once more, as inside a schema that comes as a string.
	twice := func(n int) string { return strings.Repeat(`\\u005B`, n) + "a" + strings.Repeat("]", n) }
	for _, tc := range []struct {
		name string
		d    Dialect
		e    Endpoint
		in   string // TEXT is what nests
	}{
		{"grammar", LlamaCPP, Chat, `"grammar":"root ::= TEXT"`},
		{"guided_grammar", LlamaCPP, Completions, `"guided_grammar":"TEXT"`},
		{"pattern", LlamaCPP, Completions, `"json_schema":{"type":"string","pattern":"TEXT"}`},
		{"pattern of a format", LlamaCPP, Chat, `"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"pattern":"^TEXT$"}}}}}`},
		{"key", VLLM, Chat, `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"patternProperties":{"TEXT":{}}}}}`},
		{"pattern of a tool", LlamaCPP, Chat, `"tools":[{"type":"function","function":{"name":"f","parameters":{"pattern":"TEXT"}}}]`},
		{"pattern of a function", OpenAI, Chat, `"functions":[{"name":"f","parameters":{"pattern":"TEXT"}}]`},
		{"guided_json as a string", VLLM, Chat, `"guided_json":"{\"pattern\":\"TEXT\"}"`},
		{"guided_json as a string", SGLang, Completions, `"guided_json":"{\"pattern\":\"TEXT\"}"`},
		{"json_schema as a string", SGLangPD, Completions, `"json_schema":"{\"pattern\":\"TEXT\"}"`},
		{"regex", SGLang, Chat, `"regex":"TEXT"`},
		{"ebnf", SGLangPD, Chat, `"ebnf":"TEXT"`},
		{"guided_regex", VLLMNixl, Chat, `"guided_regex":"TEXT"`},
		{"structured_outputs", VLLMMooncake, Chat, `"structured_outputs":{"grammar":"TEXT"}`},
		{"structural tag", SGLang, Chat, `"response_format":{"type":"structural_tag","structures":[{"schema":{"pattern":"TEXT"}}]}`},
	} {
		for how, text := range map[string]func(int) string{"plain": nest, "escaped": escaped, "escaped twice": twice} {
			if how == "escaped twice" && !strings.Contains(tc.in, `\"pattern`) {
				continue
			}
			for n, deep := range map[int]bool{maxNest - 2: false, maxNest + 1: true, 30 * maxNest: true} {
				members := strings.Replace(tc.in, "TEXT", text(n), 1)
				body := with(members)
				if tc.e == Completions {
					body = completion(members)
				}
				b, err := Scan(tc.e, []byte(body))
				if err == nil {
					_, err = b.Judge(Policy{Dialect: tc.d})
				}
				if refused := err != nil && err.Code == fault.TooDeep; refused != deep || err != nil && !refused {
					t.Errorf("%v: %s, %s, %d deep: %v", tc.d, tc.name, how, n, err)
				}
			}
		}
	}
	// Brackets that only stand beside each other are no depth.
	flat := strings.Repeat(`(a)[b]`, 4*maxNest)
	if b, err := Scan(Chat, []byte(with(`"grammar":"`+flat+`"`))); err != nil {
		t.Error(err)
	} else if _, err := b.Judge(Policy{Dialect: LlamaCPP}); err != nil {
		t.Errorf("side by side: %v", err)
	}
}
