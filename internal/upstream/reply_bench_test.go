package upstream

import "testing"

const smallChunk = `{"id":"bh-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1796135051,"model":"smol","choices":[{"index":0,"delta":{"role":null,"content":" word","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":{"prompt_tokens":37,"total_tokens":39,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0}}`

var benchPublic = Public{ID: "req-8d7f0c3e5b2a4c619f1e2d3c4b5a6978", Model: "smol-alias"}

// BenchmarkChunk is the hot path of a stream: one small chunk read and written again.
func BenchmarkChunk(b *testing.B) {
	body := []byte(smallChunk)
	out := make([]byte, 0, 4096)
	b.Run("parse", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			r, err := ParseChunk(SGLangPD, Chat, body)
			if err != nil || Sound(SGLangPD, "bh-0123456789abcdef0123456789abcdef", &r) != Agreed {
				b.Fatal(err)
			}
			out = r.Rewrite(out[:0], benchPublic)
		}
	})
	b.Run("read again", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		var r Reply
		for b.Loop() {
			if err := ReadChunk(&r, SGLangPD, Chat, body); err != nil || Sound(SGLangPD, "bh-0123456789abcdef0123456789abcdef", &r) != Agreed {
				b.Fatal(err)
			}
			out = r.Rewrite(out[:0], benchPublic)
		}
	})
	event := AppendEvent(nil, body)
	b.Run("event", func(b *testing.B) {
		b.SetBytes(int64(len(event)))
		b.ReportAllocs()
		for b.Loop() {
			n := CutEvent(event)
			if _, ok := EventData(event[:n]); !ok {
				b.Fatal("no data")
			}
		}
	})
}
