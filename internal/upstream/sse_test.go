package upstream

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// events cuts a stream up as a reader does that gets it in the given pieces.
func events(pieces ...[]byte) (out []string, rest string) {
	var buf []byte
	for _, p := range pieces {
		buf = append(buf, p...)
		for n := CutEvent(buf); n > 0; n = CutEvent(buf) {
			if data, ok := EventData(buf[:n]); ok {
				out = append(out, string(data))
			}
			buf = buf[n:]
		}
	}
	return out, string(buf)
}

// framed is a stream with all that the standard allows (recipe R10, part 2). Its parts end
// in LF, CRLF or CR.
func framed() (stream string, want []string) {
	long := strings.Repeat("z", 700)
	return "\xef\xbb\xbfdata: {\"a\":\"é😀 usage\"}\n\n" + ": comment\n\n" + "event: x\r\ndata:{\"b\":1}\r\nid: 7\r\n\r\n" +
			"data: {\"c\":\ndata:  2}\n\n" + "\n" + "data\n\n" + "datax: no\n\n" + "retry: 5\rdata: {\"d\":\"\u2028\"}\r\r" +
			"data: {\"e\":\rdata: 3}\r\n\r" + "data: " + long + "\n\n" + "data: [DONE]\n\n" + "data: half\n",
		[]string{"{\"a\":\"é😀 usage\"}", "{\"b\":1}", "{\"c\":\n 2}", "", "{\"d\":\"\u2028\"}", "{\"e\":\n3}", long, Done}
}

func TestEvents(t *testing.T) {
	stream, want := framed()
	whole, rest := events([]byte(stream))
	if strings.Join(whole, "|") != strings.Join(want, "|") || rest != "data: half\n" {
		t.Fatalf("whole: %q, rest %q", whole, rest)
	}
	var single [][]byte
	for i := range len(stream) {
		single = append(single, []byte(stream[i:i+1]))
	}
	if got, _ := events(single...); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("byte by byte: %q", got)
	}
	for cut := range len(stream) {
		got, _ := events([]byte(stream[:cut]), []byte(stream[cut:]))
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Fatalf("cut at %d gives other events: %q", cut, got)
		}
		early, left := events([]byte(stream[:cut]))
		if len(early) > len(want) || strings.Join(early, "|") != strings.Join(want[:len(early)], "|") {
			t.Fatalf("cut at %d gives more events", cut)
		}
		if cut < len(stream)-len("data: half\n")-1 && len(early) == len(want) {
			t.Fatalf("cut at %d the stream is taken for whole, %q is left", cut, left)
		}
	}
}

// TestEventsAgain writes events again: they read the same, every line begins with a field,
// and no replacement character comes in.
func TestEventsAgain(t *testing.T) {
	stream, want := framed()
	var out []byte
	whole, _ := events([]byte(stream))
	for _, data := range whole {
		out = AppendEvent(out, []byte(data))
	}
	again, rest := events(out)
	if len(again) != len(want) || rest != "" {
		t.Fatalf("%d events, rest %q", len(again), rest)
	}
	for i := range again {
		if again[i] != strings.ReplaceAll(want[i], "\n", " ") {
			t.Errorf("event %d became %q", i, again[i])
		}
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if line != "" && !strings.HasPrefix(line, "data: ") {
			t.Errorf("line %q", line)
		}
	}
	if bytes.ContainsRune(out, utf8.RuneError) || !utf8.Valid(out) {
		t.Error("the text was damaged")
	}
	if got := string(AppendEvent(nil, []byte("{\"c\":\n 2}"))); got != "data: {\"c\":  2}\n\n" {
		t.Errorf("written again: %q", got)
	}
}

// TestEventsLong cuts a stream with an event of 1 MiB at places around its ends.
func TestEventsLong(t *testing.T) {
	long := `{"x":"` + strings.Repeat("ü", 1<<19) + `"}`
	stream := "data: 1\r\n\r\ndata: " + long + "\r\n\r\ndata: 2\n\n"
	for _, cut := range []int{0, 5, 9, 10, 11, 12, 17, 1000, 1 << 20, len(stream) - 16, len(stream) - 13, len(stream) - 12, len(stream) - 10, len(stream) - 1} {
		got, rest := events([]byte(stream[:cut]), []byte(stream[cut:]))
		if len(got) != 3 || got[0] != "1" || got[1] != long || got[2] != "2" || rest != "" {
			t.Errorf("cut at %d: %d events", cut, len(got))
		}
	}
}

// TestRecordedCuts cuts what engines sent at every place, and once byte by byte.
func TestRecordedCuts(t *testing.T) {
	for _, name := range []string{"llamacpp/11549/chat-stream.sse", "vllm/0.32.0/chat-continuous.sse", "sglang/0.5.20/chat-usage.sse", "vllm/0.32.0/error-in-stream.sse"} {
		stream := recordedFile(t, name)
		stream = stream[:min(len(stream), 6000)]
		want, left := events(stream)
		if len(want) < 5 {
			t.Fatalf("%s: %d events", name, len(want))
		}
		for cut := range stream {
			got, rest := events(stream[:cut], stream[cut:])
			if strings.Join(got, "|") != strings.Join(want, "|") || rest != left {
				t.Fatalf("%s: cut at %d gives other events", name, cut)
			}
		}
		pieces := make([][]byte, len(stream))
		for i := range stream {
			pieces[i] = stream[i : i+1]
		}
		if got, _ := events(pieces...); strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%s: byte by byte", name)
		}
	}
}

// FuzzEvents holds that no cut changes the events of a stream.
func FuzzEvents(f *testing.F) {
	stream, _ := framed()
	f.Add([]byte(stream), 100)
	f.Add([]byte("data: a\r\r\ndata: b\n\r\n\r"), 9)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		cut = min(max(cut, 0), len(stream))
		want, _ := events(stream)
		got, _ := events(stream[:cut], stream[cut:])
		if strings.Join(want, "|") != strings.Join(got, "|") {
			t.Fatalf("%q cut at %d: %q, whole %q", stream, cut, got, want)
		}
	})
}
