package fault

import (
	"fmt"
	"strings"
)

// Codes returns every registered code, in the order of the registry.
func Codes() []Code {
	codes := make([]Code, len(registry))
	for i := range registry {
		codes[i] = registry[i].code
	}
	return codes
}

// Markdown renders the registry as the text of docs/errors.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Errors\n\n" +
		"<!-- Made from internal/fault. To change it, change the registry there and run\n" +
		"     go test ./internal/fault -rewrite -->\n\n" +
		"Every error is a JSON body of this shape:\n\n" +
		"```json\n" + exampleBody() + "\n```\n\n" +
		"`code` is stable and meant for programs, `message` and `hint` are for people, `param` is the\n" +
		"field that the error is about or null, and `id` is the request's id, also in the header\n" +
		"`x-bulkhead-request-id`. Messages hold numbers and field names only, never a prompt, an answer or\n" +
		"a key. After the first byte of a stream the same object comes as one `data:` event, and the\n" +
		"connection is then aborted without `[DONE]`.\n\n" +
		"| code | status | type | message | what to do |\n" +
		"|---|---|---|---|---|\n")
	for _, r := range registry {
		hint := r.hint
		if r.client != "" {
			hint += fmt.Sprintf(" (Workers to the gateway only; a client sees `%s`.)", r.client)
		}
		fmt.Fprintf(&b, "| `%s` | %d | `%s` | %s | %s |\n", r.code, r.status, r.kind, r.sentence, hint)
	}
	return b.String()
}

func exampleBody() string {
	return string(New(PromptOverPool, Int(900), Int(671)).WithID("req-8d7f0c3e5b2a4c619f1e2d3c4b5a6978").Body())
}
