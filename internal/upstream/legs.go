package upstream

import (
	"encoding/json"
	"slices"
	"strconv"
)

// Control is what the gateway writes into the bodies of the two legs. Every value is the
// gateway's own; none comes from a client.
type Control struct {
	// RID is the internal id of the attempt, which every answer must carry (G-12).
	RID string
	// Host and Port name the prefill worker for decode's own table of peers.
	Host string
	Port int
	// Room is where the legs meet: 1 to 2^63-1, random, never used twice.
	Room int64
	// Model is the served name of the model (G-13).
	Model string
	// MaxTokens is decode's answer length (G-2). It must be positive.
	MaxTokens int64
	// Seed is used on both legs if the client gave none.
	Seed int64
}

// Prefill returns the body for the prefill leg: one token, never streamed (G-3), and
// without stop strings, so that the token it reports is the one that decode begins with.
func (r *Request) Prefill(c Control) []byte {
	b := r.control(c)
	b = append(b, `,"max_tokens":1,"stream":false`...)
	edits := r.edits
	if r.stop.to > 0 {
		edits = append(slices.Clone(edits), edit{r.stop, "null"})
	}
	return r.rest(b, edits)
}

// Decode returns the body for the decode leg. A stream is asked for with usage on every
// chunk, which is how decode states its count before its first byte is released (G-3).
func (r *Request) Decode(c Control) []byte {
	b := r.control(c)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, c.MaxTokens, 10)
	if r.Streaming == Streamed {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`...)
	} else {
		b = append(b, `,"stream":false`...)
	}
	return r.rest(b, r.edits)
}

// controlSize is more than the control fields take, names apart.
const controlSize = 512

// control begins a body with what both legs have in common.
func (r *Request) control(c Control) []byte {
	b := make([]byte, 0, len(r.body)+controlSize+len(c.Model)+len(c.Host))
	b = append(b, r.body[:r.open]...)
	b = append(b, `"rid":`...)
	b = appendString(b, c.RID)
	b = append(b, `,"bootstrap_host":`...)
	b = appendString(b, c.Host)
	b = append(b, `,"bootstrap_port":`...)
	b = strconv.AppendInt(b, int64(c.Port), 10)
	b = append(b, `,"bootstrap_room":`...)
	b = strconv.AppendInt(b, c.Room, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, c.Model)
	if !r.seeded {
		b = append(b, `,"seed":`...)
		b = strconv.AppendInt(b, c.Seed, 10)
	}
	return b
}

// rest ends a body with what is left of the client's own. There is always a member left,
// for the prompt is never cut.
func (r *Request) rest(b []byte, edits []edit) []byte {
	b = append(b, ',')
	shifted := make([]edit, len(edits))
	for i, e := range edits {
		shifted[i] = edit{span{e.from - r.open, e.to - r.open}, e.with}
	}
	return apply(b, r.body[r.open:], shifted)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil {
		// A string cannot fail to marshal; an empty one is refused by whoever reads it.
		return append(b, `""`...)
	}
	return append(b, q...)
}
