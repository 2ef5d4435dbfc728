package twin

import "net/http"

// hosted is an API of which clients see nothing but the models.
type hosted struct{ t *Twin }

func (h *hosted) serve(c *call) bool {
	switch c.r.URL.Path {
	case "/v1/models":
		writeJSON(c.w, http.StatusOK, object{"object": "list", "data": []object{{"id": h.t.face(), "object": "model", "created": 1, "owned_by": "twin"}}})
	case "/v1/chat/completions", "/v1/completions":
		c.ask = parse(c.r.URL.Path == "/v1/chat/completions", c.body)
		if c.ask.malformed {
			writeJSON(c.w, http.StatusBadRequest, object{"error": object{"message": "We could not parse the body.", "type": "invalid_request_error", "param": nil, "code": nil}})
			return true
		}
		if c.ask.model != h.t.opts.Model {
			writeJSON(c.w, http.StatusNotFound, object{"error": object{"message": "The model does not exist.", "type": "invalid_request_error", "param": nil, "code": "model_not_found"}})
			return true
		}
		if n := c.ask.count(); n+c.ask.limit > h.t.opts.Window {
			writeJSON(c.w, http.StatusBadRequest, object{"error": object{"message": "Your input exceeds the context window of this model.", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}})
			return true
		}
		s := shape{id: "chatcmpl-" + c.id, prompt: c.ask.count(), cached: 0, extra: object{"system_fingerprint": "fp_twin"}}
		for _, p := range c.ask.prompts {
			for range c.ask.n {
				s.choices = append(s.choices, speak(c.ask.limit, func() string { return p }))
			}
		}
		c.compute(s.prompt)
		c.answer(s)
	default:
		return false
	}
	return true
}
