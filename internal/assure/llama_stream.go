package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// conversation is llama.cpp's header for streams that can be taken up again.
const conversation = "X-Conversation-Id"

// sharedText is how many characters two answers must have in common to be one answer.
const sharedText = 24

// resumable is a stream of tenant 1 under a conversation id that tenant 0 knows.
type resumable struct {
	id      string
	stream  *Stream
	labeled bool // the header was taken
	known   bool // the engine knows a conversation of that id
}

// resume begins it. Where the header is refused it begins without.
func (p *Probe) resume(ctx context.Context, name string) (resumable, *Verdict) {
	r := resumable{id: "conv-" + name + "-" + p.Fingerprint(name+p.Way.String()), labeled: true}
	body := saying(counting(name), 80, streamed())
	r.stream = p.Tenant(1).Open(ctx, chatPath, map[string]string{conversation: r.id}, body)
	if status := r.stream.Status(); status >= 400 && status < 500 {
		r.stream.Close()
		r.labeled = false
		r.stream = p.Tenant(1).Open(ctx, chatPath, nil, body)
	}
	if !r.stream.Until(sharedText) {
		a := r.stream.Rest()
		v := void("the victim's stream did not begin: %s", a.brief())
		return r, &v
	}
	look := p.Raw(ctx, "plain", http.MethodPost, "/v1/streams/lookup", nil, map[string]any{"conversation_ids": []string{r.id}})
	var found []json.RawMessage
	r.known = json.Unmarshal(look.Body, &found) == nil && len(found) > 0
	return r, nil
}

// control says what the engine was told.
func (r *resumable) control() string {
	told := "took the victim's header"
	if !r.labeled {
		told = "refused the victim's header, so the victim went without"
	}
	knows := "the engine knows the conversation"
	if !r.known {
		knows = "the engine knows no such conversation"
	}
	return fmt.Sprintf("the way %s; %s", told, knows)
}

// llamaRead: tenant 0 asks for the stream of tenant 1.
func llamaRead(ctx context.Context, p *Probe) Verdict {
	r, v := p.resume(ctx, "read")
	if v != nil {
		return *v
	}
	got := p.Tenant(0).Get(ctx, "/v1/stream?conv_id="+r.id+"&from=0", nil)
	own := r.stream.Rest()
	if !own.OK() {
		return void("the victim's stream got %s", own.brief())
	}
	if got.Status == http.StatusOK && strings.Contains(got.Text, own.Text[:sharedText]) {
		return red(r.control(), "the other tenant read %d characters; the answer has %d", len(got.Text), len(own.Text))
	}
	return green(r.control(), "the other tenant's request for the stream gets %s; the victim's stream came whole", got.brief())
}

// llamaReplace: tenant 0 begins a stream under the id of tenant 1.
func llamaReplace(ctx context.Context, p *Probe) Verdict {
	r, v := p.resume(ctx, "replace")
	if v != nil {
		return *v
	}
	got := p.Tenant(0).Post(ctx, chatPath, map[string]string{conversation: r.id},
		saying("Say the word apple.", 4, map[string]any{"stream": true}))
	return r.cut(got)
}

// llamaKill: tenant 0 deletes the stream of tenant 1.
func llamaKill(ctx context.Context, p *Probe) Verdict {
	r, v := p.resume(ctx, "kill")
	if v != nil {
		return *v
	}
	got := p.Tenant(0).Do(ctx, http.MethodDelete, "/v1/stream?conv_id="+r.id, nil, nil)
	return r.cut(got)
}

// cut judges what became of the victim's stream.
func (r *resumable) cut(got Answer) Verdict {
	own := r.stream.Rest()
	if !own.OK() {
		return red(r.control(), "the victim's stream was cut by the other tenant's request (%s): %s", got.brief(), own.brief())
	}
	if len(own.Finish) == 0 || own.Finish[0] != "length" {
		return void("the victim's stream ended before its limit")
	}
	return green(r.control(), "the other tenant's request gets %s; the victim's stream came whole", got.brief())
}
