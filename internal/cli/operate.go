package cli

import (
	"context"
	"errors"
	"flag"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/admin"
)

// asked is what the commands that ask a running gateway have in common.
type asked struct {
	sys    System
	client admin.Client
	json   bool
}

// askFlags reads the flags of such a command and its other arguments, which may stand on
// either side of the flags.
func askFlags(sys System, name, about string, args []string) (asked, []string, error) {
	f := flags(sys, name, about)
	url := f.String("admin", "http://127.0.0.1:8081", "the admin listener of bulkhead serve, as `URL` or host:port")
	asJSON := f.Bool("json", false, "print the answer as JSON, see docs/schema")
	rest, err := mixed(f, args)
	if !strings.Contains(*url, "://") {
		*url = "http://" + *url // as serve's own --admin is written
	}
	return asked{sys: sys, client: admin.Client{URL: *url}, json: *asJSON}, rest, err
}

// mixed parses flags that may stand before, between and behind the other arguments.
func mixed(f *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := readFlags(f, args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
}

// raw prints an answer as it came.
func (a asked) raw(body []byte) error {
	_, err := a.sys.Stdout.Write(body)
	return err
}

// runExplain is bulkhead explain.
func runExplain(ctx context.Context, sys System, args []string) error {
	a, rest, err := askFlags(sys, "explain", "show one request on one screen: who, where, counts,\n"+
		"legs, verdict; no text of prompts or answers\n"+
		"usage: bulkhead explain [flags] ID\n"+
		"The ID is in the header x-bulkhead-request-id of the answer; the id in its body\n"+
		"does as well.", args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usage("want the id of one request, from the header x-bulkhead-request-id of its answer")
	}
	e, raw, err := a.client.Explain(ctx, publicID(rest[0]))
	switch {
	case errors.Is(err, admin.ErrNotFound):
		return exit{exitFailed, err}
	case err != nil:
		return err
	case a.json:
		return a.raw(raw)
	}
	return e.Text(sys.Stdout)
}

// publicID is the public id of a request, also where the id of its answer's body is given.
func publicID(id string) string {
	for _, body := range [...]string{"chatcmpl-", "cmpl-"} {
		if rest, cut := strings.CutPrefix(id, body); cut {
			return "req-" + rest
		}
	}
	return id
}

// runPosture is bulkhead posture. It fails if a rule that applies is not enforced.
func runPosture(ctx context.Context, sys System, args []string) error {
	a, rest, err := askFlags(sys, "posture", "show which rules hold on which route;\nexit code 1 if one that applies is not enforced", args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return usage("unexpected argument %q", rest[0])
	}
	p, raw, err := a.client.Posture(ctx)
	if err != nil {
		return err
	}
	if a.json {
		err = a.raw(raw)
	} else {
		err = p.Text(sys.Stdout)
	}
	if err == nil && !p.Whole {
		return errFailed
	}
	return err
}

// runShadow is bulkhead shadow.
func runShadow(ctx context.Context, sys System, args []string) error {
	a, rest, err := askFlags(sys, "shadow", "show what passed only because a control is in shadow,\nand the grants to paste\nusage: bulkhead shadow report [flags]", args)
	if err != nil {
		return err
	}
	if len(rest) != 1 || rest[0] != "report" {
		return usage("want bulkhead shadow report")
	}
	s, raw, err := a.client.Shadow(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.raw(raw)
	}
	return s.Text(sys.Stdout, time.Now())
}
