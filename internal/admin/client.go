package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client asks an admin listener.
type Client struct {
	// URL is the listener: http://127.0.0.1:8081.
	URL string
}

// ErrNotFound is the answer for a request that is not remembered.
var ErrNotFound = errors.New("admin: no such request is remembered")

// Bounds of a question.
const (
	askTime  = 10 * time.Second
	maxReply = 32 << 20 // bytes
)

// Explain asks for one request. raw is the answer as it came.
func (c Client) Explain(ctx context.Context, id string) (e Explanation, raw []byte, err error) {
	raw, err = c.ask(ctx, "/v1/explain/"+url.PathEscape(id), ExplainSchema, &e)
	return e, raw, err
}

// Posture asks for the state of the rules.
func (c Client) Posture(ctx context.Context) (p Posture, raw []byte, err error) {
	raw, err = c.ask(ctx, "/v1/posture", PostureSchema, &p)
	return p, raw, err
}

// Shadow asks for what passed because a control is in shadow.
func (c Client) Shadow(ctx context.Context) (s Shadow, raw []byte, err error) {
	raw, err = c.ask(ctx, "/v1/shadow", ShadowSchema, &s)
	return s, raw, err
}

// ask gets a path and reads its answer, which must be of the given schema.
func (c Client) ask(ctx context.Context, path, schema string, into any) ([]byte, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("admin: want a URL such as http://127.0.0.1:8081")
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.URL, "/")+path, nil)
	if err != nil {
		return nil, fmt.Errorf("admin: ask %s: %w", path, err)
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, fmt.Errorf("admin: nobody answers at %s (is bulkhead serve running there? --admin names its admin listener)", c.URL)
		}
		return nil, fmt.Errorf("admin: no answer of %s in time, or none of an admin listener", c.URL)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("admin: the answer of %s broke off", c.URL)
	}
	var head struct{ Schema string }
	switch known := json.Unmarshal(body, &head) == nil; {
	case known && head.Schema == errorSchema && resp.StatusCode == http.StatusNotFound:
		return nil, ErrNotFound
	case !known || head.Schema != schema || resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("admin: what answers at %s is no admin listener of this version", c.URL)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("admin: what answers at %s is no admin listener of this version", c.URL)
	}
	return body, nil
}
