package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// drip gives a stream event by event, as an engine sends it.
type drip struct {
	events []string
	at     int
}

func (d *drip) Read(b []byte) (int, error) {
	if d.at == len(d.events) {
		return 0, io.EOF
	}
	d.at++
	return copy(b, d.events[d.at-1]), nil
}

func (d *drip) Close() error { return nil }

// sink takes an answer.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkRelay is what one event of a stream costs the gateway, HTTP apart: cut, read,
// judged, rewritten and handed to the client's connection.
func BenchmarkRelay(b *testing.B) {
	c := sound()
	c.Models[0].Dialect, c.Bounds.Event = upstream.SGLangPD, 1<<20
	g, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	const events = 1000
	id := "bh-00112233445566778899aabbccddeeff"
	stream := &drip{}
	for i := range events {
		stream.events = append(stream.events, "data: "+chunk(chatPath, id, " word", "", promptTokens, i+1)+"\n\n")
	}
	body, fail := upstream.Scan(upstream.Chat, []byte(chatBody(`,"stream":true`)))
	if fail != nil {
		b.Fatal(fail)
	}
	req, fail := body.Judge(upstream.Policy{Dialect: upstream.SGLangPD})
	if fail != nil {
		b.Fatal(fail)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += events {
		stream.at = 0
		w := &sink{header: http.Header{}}
		x := &exchange{g: g, w: w, req: req, model: g.models["m"], route: route{name: "m"}, ids: ids{public: strings.Repeat("0", 32)}}
		x.out.x, x.out.rc = x, http.NewResponseController(w)
		x.first = g.clock.AfterFunc(g.bounds.FirstByte, func() {})
		x.out.sent = true
		r := &round{x: x, ctx: context.Background(), max: 2 * events, split: true}
		a := &attempt{x: x, round: r, id: id, decode: r.leg(nil, id), agreement: upstream.Agreed}
		s := &relay{a: a, id: id, public: x.public(), left: 1, ended: make([]bool, 1), agreed: true}
		s.in = eventReader{r: stream, max: g.bounds.Event, wait: s.flush}
		s.idle = g.clock.AfterFunc(g.bounds.Idle, func() {})
		if f := s.run(); f == nil || bytes.Equal(s.out, nil) && s.chunks != events {
			b.Fatalf("%d chunks, %+v", s.chunks, f)
		}
		s.idle.Stop()
		x.first.Stop()
	}
}
