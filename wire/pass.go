package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// Errors of a pass. Neither says which part was wrong.
var (
	// ErrPass says that a pass is missing, malformed, or not made with our key
	// for this room and body.
	ErrPass = errors.New("wire: pass not valid")
	// ErrPassExpired says that an authentic pass has run out.
	ErrPassExpired = errors.New("wire: pass expired")
)

// passKey is the least number of bytes of a pass key.
const passKey = 32

// Pass is what the gateway vouches for (H-16).
type Pass struct {
	Attempt handoff.Attempt
	Domain  kv.Domain
	Expiry  time.Time // whole seconds
}

// Passer makes and checks the header by which a gateway tells a worker attempt,
// cache domain and expiry, bound to one room and one body (H-16). That a pass is
// used once only is the worker's to see to. Safe for concurrent use.
type Passer struct{ key []byte }

// NewPasser returns a passer for a secret key of at least 32 bytes, which
// gateway and workers share.
func NewPasser(key []byte) (*Passer, error) {
	if len(key) < passKey {
		return nil, fmt.Errorf("wire: pass key of %d bytes, at least %d", len(key), passKey)
	}
	return &Passer{key: bytes.Clone(key)}, nil
}

// Format prints what it is, whatever the verb.
func (p *Passer) Format(s fmt.State, _ rune) { redact(s, "passer") }

// Mint returns the header for one leg: v1.ATTEMPT.DOMAIN.EXPIRY.MAC, hex but for
// the expiry, which is in seconds since 1970 and rounded down.
func (p *Passer) Mint(attempt handoff.Attempt, domain kv.Domain, expiry time.Time, room int64, body []byte) string {
	mac := p.mac(attempt, domain, expiry.Unix(), room, body)
	return fmt.Sprintf("v1.%x.%x.%d.%x", attempt[:], domain[:], expiry.Unix(), mac)
}

// Check returns what the header vouches for at time now, for the room and the
// body that came with it. Errors: [ErrPass], [ErrPassExpired].
func (p *Passer) Check(header string, room int64, body []byte, now time.Time) (Pass, error) {
	var out Pass
	parts := strings.Split(header, ".")
	if len(header) > 256 || len(parts) != 5 || parts[0] != "v1" {
		return Pass{}, ErrPass
	}
	var mac [sha256.Size]byte
	seconds, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || !unhex(out.Attempt[:], parts[1]) || !unhex(out.Domain[:], parts[2]) || !unhex(mac[:], parts[4]) {
		return Pass{}, ErrPass
	}
	want := p.mac(out.Attempt, out.Domain, seconds, room, body)
	// One spelling only: what differs from the header that we would make is refused.
	if !hmac.Equal(mac[:], want) || parts[3] != strconv.FormatInt(seconds, 10) {
		return Pass{}, ErrPass
	}
	out.Expiry = time.Unix(seconds, 0)
	if !now.Before(out.Expiry) {
		return Pass{}, ErrPassExpired
	}
	return out, nil
}

// unhex decodes exactly len(into) bytes of lower-case hex.
func unhex(into []byte, s string) bool {
	if len(s) != hex.EncodedLen(len(into)) || strings.ToLower(s) != s {
		return false
	}
	_, err := hex.Decode(into, []byte(s))
	return err == nil
}

// mac is HMAC-SHA256 over a label and the parts, each behind its length.
func (p *Passer) mac(attempt handoff.Attempt, domain kv.Domain, expiry, room int64, body []byte) []byte {
	sum := sha256.Sum256(body)
	m := hmac.New(sha256.New, p.key)
	m.Write([]byte("bulkhead-pass-v1"))
	var n [8]byte
	for _, part := range [...][]byte{
		attempt[:], domain[:],
		binary.BigEndian.AppendUint64(nil, uint64(expiry)), binary.BigEndian.AppendUint64(nil, uint64(room)),
		sum[:],
	} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		m.Write(n[:])
		m.Write(part)
	}
	return m.Sum(nil)
}
