package upstream

import (
	"encoding/json"
	"fmt"
)

// Role is what a worker of a pair is for.
type Role string

const (
	// PrefillRole computes prompts.
	PrefillRole Role = "prefill"
	// DecodeRole generates answers.
	DecodeRole Role = "decode"
)

// Info is what a worker says about itself at /server_info. What it does not say is
// unknown.
type Info struct {
	// Role is the worker's own idea of its role.
	Role Role
	// Model is the served name.
	Model string
	// Version and Incarnation tell one engine, and one life of it, from another.
	Version, Incarnation string
	// Window is the context length, Pool the KV pool, MaxInput the longest prompt that
	// is accepted, PageSize the size of a page; all in tokens.
	Window, Pool, MaxInput, PageSize Count
}

// ParseInfo reads the body of /server_info.
func ParseInfo(body []byte) (Info, error) {
	var v struct {
		Mode        Role   `json:"disaggregation_mode"`
		Model       string `json:"served_model_name"`
		Version     string `json:"version"`
		Incarnation string `json:"incarnation"`
		Window      *int64 `json:"context_length"`
		Pool        *int64 `json:"max_total_num_tokens"`
		MaxInput    *int64 `json:"max_req_input_len"`
		PageSize    *int64 `json:"page_size"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return Info{}, fmt.Errorf("upstream: read server info: %w", ErrMalformed)
	}
	i := Info{Role: v.Mode, Model: v.Model, Version: v.Version, Incarnation: v.Incarnation}
	for _, n := range []struct {
		from *int64
		to   *Count
	}{{v.Window, &i.Window}, {v.Pool, &i.Pool}, {v.MaxInput, &i.MaxInput}, {v.PageSize, &i.PageSize}} {
		if n.from == nil {
			continue
		}
		if *n.from < 0 {
			return Info{}, fmt.Errorf("upstream: read server info: negative number: %w", ErrMalformed)
		}
		*n.to = Count{N: *n.from, Known: true}
	}
	return i, nil
}

// Match says why two workers cannot be the two legs of a pair for the served model, or
// nothing if they can. The text is a constant or names numbers; it holds no address.
func Match(served string, prefill, decode Info) error {
	switch {
	case prefill.Role != PrefillRole:
		return fmt.Errorf("upstream: match pair: the prefill leg has another role")
	case decode.Role != DecodeRole:
		return fmt.Errorf("upstream: match pair: the decode leg has another role")
	case prefill.Model != served:
		return fmt.Errorf("upstream: match pair: the prefill leg serves another model")
	case decode.Model != served:
		return fmt.Errorf("upstream: match pair: the decode leg serves another model")
	case !prefill.PageSize.Known || !decode.PageSize.Known:
		return fmt.Errorf("upstream: match pair: a leg does not tell its page size")
	case prefill.PageSize != decode.PageSize:
		return fmt.Errorf("upstream: match pair: page sizes %d and %d differ", prefill.PageSize.N, decode.PageSize.N)
	case prefill.Version != decode.Version:
		return fmt.Errorf("upstream: match pair: versions differ")
	}
	return nil
}
