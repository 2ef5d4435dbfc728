package worker

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/http"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// meet finds the attempt of a leg that came without a pass. It follows from the room and
// from this life of the prefill worker, which both ends of a connection know: so the two
// legs of a room meet, no room of an earlier life is ever met again, and a second leg
// with the same room is a duplicate. The domain is the attempt's own, so that nothing is
// shared (H-12). That the two legs mean the same prompt is the machines' to find out.
func (w *Worker) meet(req *request) {
	if !req.open {
		return
	}
	life := w.hello.Incarnation
	if w.cfg.Role == wire.RoleDecode {
		life = 0 // if there is nobody to meet; the door says so
		if p := w.peer(req.peer); p != nil && p.current != nil {
			life = p.current.link.Peer().Incarnation
		}
	}
	sum := openHash("attempt", life, req.room)
	req.attempt = handoff.Attempt(sum[:len(handoff.Attempt{})])
	sum = openHash("domain", life, req.room)
	req.domain = kv.Domain(sum[:len(kv.Domain{})])
}

func openHash(what string, life uint64, room int64) [sha256.Size]byte {
	b := append([]byte("bulkhead-open-v1\x00"), what...)
	b = binary.BigEndian.AppendUint64(b, life)
	b = binary.BigEndian.AppendUint64(b, uint64(room))
	return sha256.Sum256(b)
}

// name draws an id for a leg that came without one.
func (w *Worker) name() string {
	var b [16]byte
	if _, err := io.ReadFull(w.cfg.Random, b[:]); err != nil {
		panic("worker: no randomness for an id")
	}
	return "bh-" + hex.EncodeToString(b[:])
}

// modelInfo tells routers what the model is.
func (w *Worker) modelInfo(rw http.ResponseWriter, _ *http.Request) {
	writeJSON(rw, map[string]any{
		"model_path": w.cfg.ServedName, "served_model_name": w.cfg.ServedName, "tokenizer_path": w.cfg.ServedName,
		"is_generation": true, "model_type": "recall", "architectures": []string{"RecallForCausalLM"}, "weight_version": "default",
		"has_image_understanding": false, "has_audio_understanding": false,
	})
}

// loads tells routers how busy the worker is, in SGLang's words.
func (w *Worker) loads(rw http.ResponseWriter, _ *http.Request) {
	s := w.status.get()
	total := s.Counts.Total * w.cfg.PageTokens
	used := (s.Counts.Total - s.Counts.Free) * w.cfg.PageTokens
	share := 0.0
	if total > 0 {
		share = float64(used) / float64(total)
	}
	writeJSON(rw, map[string]any{
		"timestamp": w.cfg.Now().UTC().Format("2006-01-02T15:04:05Z"), "version": Version, "dp_rank_count": 1,
		"loads": []any{map[string]any{
			"dp_rank": 0, "num_running_reqs": s.Attempts - s.Waiting, "num_waiting_reqs": s.Waiting, "num_used_tokens": used,
			"max_total_num_tokens": w.capacity(), "token_usage": share, "gen_throughput": 0.0, "cache_hit_rate": 0.0,
			"utilization": share, "max_running_requests": w.cfg.Attempts,
		}},
	})
}
