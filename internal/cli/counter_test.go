package cli

import (
	"testing"

	"bulkhead.dev/bulkhead/internal/config"
)

// TestNobodyCounts: where nothing is told of counting, an engine that has no endpoint for
// it gets no counter that refuses: every request with tools would be 503 there.
func TestNobodyCounts(t *testing.T) {
	for engine, want := range map[string]bool{"openai": false, "vllm": true, "bulkhead": true} {
		g := modelConfig(config.Model{Name: "m", Engine: engine, Tokenizer: "none"}, &secretReader{}, "models[0]", "", nil)
		if got := g.Counter != nil; got != want {
			t.Errorf("%s: counter %v, want %v", engine, got, want)
		}
	}
}
