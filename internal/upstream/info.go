package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Optionality says whether an engine must answer a look.
type Optionality uint8

const (
	// Needed: without this answer nothing is known of the engine.
	Needed Optionality = iota
	// Optional: another status than 200 is no fault.
	Optional
	// Instead: it is asked only if the look before it was not answered with 200.
	Instead
)

// Look is one thing to ask an engine about itself, by GET.
type Look struct {
	// Path is the path, with its query.
	Path     string
	Optional Optionality
	// Bootstrap says that it is asked at the prefill node's second address.
	Bootstrap bool
}

// Seen is the answer to one look; looks that were not asked or not answered are left out.
// Which address answered follows from the path.
type Seen struct {
	Path   string
	Status int
	Body   []byte
}

// Info is what an engine says about itself. What it does not say is unknown.
type Info struct {
	// Role is the server's own idea of its role; empty if it tells none.
	Role Role
	// Model is the served name, Models all names that it answers to, adapters included.
	Model  string
	Models []string
	// Version and Incarnation tell one engine, and one life of it, from another. The
	// incarnation is empty if the engine tells nothing that it drew at its start.
	Version, Incarnation string
	// Epoch is a hash of all that decides what a cached page means (model, weights, version,
	// layout) and of the incarnation. Two looks at one engine differ in it if it was started
	// again or changed, or if two engines share the address.
	Epoch string
	// EngineID is the id under which a transfer finds the engine (vllm-mooncake).
	EngineID string
	// Window is the context length, Pool the KV pool that one request can have, MaxInput the
	// longest prompt that is accepted, PageSize the size of a page; all in tokens. Slots is
	// how many requests run at the same time.
	Window, Pool, MaxInput, PageSize, Slots Count
	// Running and Waiting are the requests in the engine now.
	Running, Waiting Count
	// Alarms are counters of what should never happen, in a fixed order. A rise says that
	// answers in flight may be void (G-11).
	Alarms []Alarm
	// Findings are faults of the set-up that an operator should know, as sentences without
	// addresses or keys, in a fixed order.
	Findings []string
	// Router names the kind of router that answers here instead of an engine (G-15).
	Router string
}

// Alarm is a counter of an engine by its own name.
type Alarm struct {
	Name  string
	Count int64
}

// errNoEngine says that what an engine must answer was not there.
var errNoEngine = errors.New("upstream: read info: an engine's answer is missing")

// find adds a finding.
func (i *Info) find(sentence string) {
	if !slices.Contains(i.Findings, sentence) {
		i.Findings = append(i.Findings, sentence)
	}
}

// epochOf hashes what decides the meaning of cached pages.
func epochOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// least keeps the smaller of two counts; one that is not known does not count.
func least(a, b Count) Count {
	if !a.Known || b.Known && b.N < a.N {
		return b
	}
	return a
}

// plus adds two counts; one that is not known does not count.
func plus(a, b Count) Count {
	if !a.Known || !b.Known {
		if a.Known {
			return a
		}
		return b
	}
	return Count{N: a.N + b.N, Known: true}
}

// Match says why servers cannot serve the model under the served name, or nothing if they
// can. A dialect of one leg has only decode, and prefill is not looked at. The text is a
// constant or names numbers; it holds no address.
func Match(d Dialect, served string, prefill, decode Info) error {
	if d.Traits().Legs == One {
		return matchOne("server", served, d.Traits(), decode)
	}
	if err := matchOne("prefill leg", served, d.Traits(), prefill); err != nil {
		return err
	}
	if err := matchOne("decode leg", served, d.Traits(), decode); err != nil {
		return err
	}
	told := d == Bulkhead || d == SGLangPD // what vLLM does not tell cannot be compared
	switch {
	case prefill.Router != "" || decode.Router != "":
		return fmt.Errorf("upstream: match pair: a leg is a router, behind which no leg can be chosen")
	case told && prefill.Role != PrefillRole || prefill.Role != "" && prefill.Role != PrefillRole:
		return fmt.Errorf("upstream: match pair: the prefill leg has another role")
	case told && decode.Role != DecodeRole || decode.Role != "" && decode.Role != DecodeRole:
		return fmt.Errorf("upstream: match pair: the decode leg has another role")
	case told && (!prefill.PageSize.Known || !decode.PageSize.Known):
		return fmt.Errorf("upstream: match pair: a leg does not tell its page size")
	case prefill.PageSize.Known && decode.PageSize.Known && prefill.PageSize != decode.PageSize:
		return fmt.Errorf("upstream: match pair: page sizes %d and %d differ", prefill.PageSize.N, decode.PageSize.N)
	case prefill.Version != decode.Version && (told || prefill.Version != "" && decode.Version != ""):
		return fmt.Errorf("upstream: match pair: versions differ")
	case prefill.Incarnation != "" && prefill.Incarnation == decode.Incarnation:
		return fmt.Errorf("upstream: match pair: both legs are the same server")
	case d == VLLMMooncake && prefill.EngineID == "":
		return fmt.Errorf("upstream: match pair: the prefill leg does not tell its engine id")
	}
	return nil
}

// matchOne says why a server cannot serve the model, by itself.
func matchOne(who, served string, t Traits, i Info) error {
	switch {
	case t.Hosted && len(i.Models) == 0:
		return nil
	case !slices.Contains(i.Models, served):
		return fmt.Errorf("upstream: match: the %s serves another model", who)
	case t.Legs == One && (i.Role == PrefillRole || i.Role == DecodeRole):
		return fmt.Errorf("upstream: match: the %s is one leg of a pair", who)
	}
	return nil
}

// PairFindings says what an operator should know about two legs that match.
func PairFindings(prefill, decode Info) []string {
	var out []string
	if prefill.MaxInput.Known && decode.MaxInput.Known && prefill.MaxInput.N < decode.MaxInput.N {
		out = append(out, fmt.Sprintf("prefill takes prompts of %d tokens, decode of %d: the difference is what admission must refuse", prefill.MaxInput.N, decode.MaxInput.N))
	}
	if prefill.Pool.Known && decode.Window.Known && prefill.Pool.N < decode.Window.N {
		out = append(out, fmt.Sprintf("the window is %d tokens, but only %d fit prefill's pool", decode.Window.N, prefill.Pool.N))
	}
	if decode.Pool.Known && decode.Window.Known && decode.Pool.N < decode.Window.N {
		out = append(out, fmt.Sprintf("the window is %d tokens, but only %d fit decode's pool", decode.Window.N, decode.Pool.N))
	}
	return out
}

// Looks returns what a server of a role is asked about itself, in order.
func Looks(d Dialect, role Role) []Look {
	switch d {
	case Bulkhead:
		return []Look{{Path: "/server_info"}}
	case SGLang, SGLangPD:
		return []Look{
			{Path: "/server_info"},
			{Path: "/get_server_info", Optional: Instead},
			{Path: "/v1/models"},
			{Path: "/model_info", Optional: Optional},
			{Path: "/get_model_info", Optional: Instead},
			{Path: "/v1/loads?include=core", Optional: Optional},
			{Path: "/workers", Optional: Optional},
		}
	case VLLM, VLLMNixl, VLLMMooncake:
		looks := []Look{
			{Path: "/v1/models"},
			{Path: "/version", Optional: Optional},
			{Path: "/metrics"},
			{Path: "/server_info?config_format=json", Optional: Optional},
			{Path: "/workers", Optional: Optional},
		}
		if d == VLLMMooncake && role == PrefillRole {
			looks = append(looks, Look{Path: "/query", Bootstrap: true})
		}
		return looks
	case LlamaCPP:
		return []Look{
			{Path: "/props"},
			{Path: "/v1/models"},
			{Path: "/slots", Optional: Optional},
			{Path: "/metrics", Optional: Optional},
			{Path: "/workers", Optional: Optional},
		}
	}
	return []Look{{Path: "/v1/models", Optional: Optional}}
}

// ReadInfo reads the answers to the looks. The error says what was missing or malformed,
// without text of the engine. A router that stands in an engine's place is no error: what
// it hides is unknown, and Router says so.
func ReadInfo(d Dialect, role Role, seen []Seen) (Info, error) {
	i := Info{}
	i.readWorkers(seen)
	var err error
	switch d {
	case Bulkhead, SGLang, SGLangPD:
		err = i.readSGLang(d, seen)
	case VLLM, VLLMNixl, VLLMMooncake:
		err = i.readVLLM(d, role, seen)
	case LlamaCPP:
		err = i.readLlama(seen)
	default:
		err = i.readHosted(seen)
	}
	if err != nil && i.Router == "" {
		return Info{}, err
	}
	if i.Router != "" {
		i.find("this address is a router (" + i.Router + "), not an engine: which engine answers cannot be chosen or proved")
	}
	return i, nil
}

// at returns the body of the answer to a look with status 200.
func at(seen []Seen, path string) ([]byte, bool) {
	for _, s := range seen {
		if s.Path == path && s.Status == 200 {
			return s.Body, true
		}
	}
	return nil, false
}

// readJSON reads an answer. A missing one is no error.
func readJSON(seen []Seen, path string, into any) (there bool, err error) {
	body, ok := at(seen, path)
	if !ok {
		return false, nil
	}
	if json.Unmarshal(body, into) != nil {
		name, _, _ := strings.Cut(path, "?")
		return true, fmt.Errorf("upstream: read info: %s: %w", name, ErrMalformed)
	}
	return true, nil
}
