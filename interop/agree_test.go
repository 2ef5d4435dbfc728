package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/twin"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// likeness is one part of docs/interop.md, and the twin that behaves like its engine.
type likeness struct {
	part string // the section: peer and part
	// build starts the twin for a case, and says what can be done to it.
	build func(t *testing.T, name string) (assure.Site, deeds, error)
	// foretold is what the driver expects of the engine, for as long as the page has no
	// section of it.
	foretold expected
	dialect  upstream.Dialect
}

// deeds are what can be done to a twin that no request can do.
type deeds = map[string]func(context.Context) error

// difference is a case in which the twin is not like the engine.
type difference struct {
	part, name string
	twin       assure.Outcome
}

// differences lists all of them. One that is not here fails, and so does one that is
// none any more. Cases that are withheld are not compared: what is not public the twin does
// not do (SECURITY.md).
func differences() []difference {
	return nil
}

// listen starts a twin on loopback.
func listen(t *testing.T, h http.Handler) string {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = gw.Server(nil).ErrorLog // cut connections are not worth a word
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL
}

func likenesses() []likeness {
	var all []likeness
	for _, b := range llamaBuilds() {
		all = append(all, likeness{part: "llamacpp " + b.name, dialect: upstream.LlamaCPP, foretold: b.fixed, build: func(t *testing.T, _ string) (assure.Site, deeds, error) {
			e, err := twin.New("llamacpp-"+b.name, twin.Options{Model: llamaServed, Pace: 5 * time.Millisecond, PerToken: 2 * time.Millisecond})
			if err != nil {
				return assure.Site{}, nil, err
			}
			return assure.Site{Dialect: upstream.LlamaCPP, Model: "small", Served: llamaServed, Plain: listen(t, e)}, lives(e), nil
		}})
	}
	return slices.Concat(all, vllmLikenesses(), sglangLikenesses())
}

// vllmLikenesses are those of the three ways to run vLLM.
func vllmLikenesses() []likeness {
	const engine = "vllm-0.32.0"
	options := twin.Options{Model: vllmServed, Pace: time.Millisecond}
	single := func(t *testing.T, _ string) (assure.Site, deeds, error) {
		e, err := twin.New(engine, options)
		if err != nil {
			return assure.Site{}, nil, err
		}
		return assure.Site{Dialect: upstream.VLLM, Model: "small", Served: vllmServed, Plain: listen(t, e)}, breaks(nil, e), nil
	}
	nixl := func(t *testing.T, name string) (assure.Site, deeds, error) {
		p, d := options, options
		p.Pool, p.Lease, d.Window = 2048, time.Second, 8192
		if name == "vllm-refused-prefill" {
			p.Window = 512
		}
		ep, ed, err := twin.Pair(engine, p, d)
		if err != nil {
			return assure.Site{}, nil, err
		}
		before, err := newGate(listen(t, ed))
		if err != nil {
			return assure.Site{}, nil, err
		}
		t.Cleanup(before.close)
		faults := breaks(ep, ed)
		faults["hold-decode"], faults["decode-held"], faults["release-decode"] = before.hold, before.wait, before.release
		return assure.Site{Dialect: upstream.VLLMNixl, Model: "small", Served: vllmServed, Prefill: listen(t, ep), Decode: before.url, Lease: p.Lease}, faults, nil
	}
	mooncake := func(t *testing.T, _ string) (assure.Site, deeds, error) {
		ep, ed, err := twin.Pair(engine, options, options)
		if err != nil {
			return assure.Site{}, nil, err
		}
		site := assure.Site{Dialect: upstream.VLLMMooncake, Model: "small", Served: vllmServed, Prefill: listen(t, ep), Decode: listen(t, ed)}
		site.Bootstrap = site.Prefill
		return site, breaks(ep, ed), nil
	}
	green := map[assure.Way]assure.Outcome{assure.Direct: assure.Green}
	return []likeness{
		{part: "vllm single", dialect: upstream.VLLM, build: single},
		{part: "vllm nixl", dialect: upstream.VLLMNixl, build: nixl, foretold: expected{"vllm-handed-over": green, "vllm-killed-prefill": green}},
		{part: "vllm mooncake", dialect: upstream.VLLMMooncake, build: mooncake, foretold: expected{"vllm-handed-over": green}},
	}
}

// breaks are the faults by which a vLLM twin breaks; prefill may be nil.
func breaks(prefill, front *twin.Twin) deeds {
	all := deeds{
		"kill-worker": func(context.Context) error { front.Break(); return nil },
		"revive": func(context.Context) error {
			front.Revive()
			if prefill != nil {
				prefill.Revive()
			}
			return nil
		},
	}
	if prefill != nil {
		all["kill-prefill"] = func(context.Context) error { prefill.Kill(); return nil }
	}
	return all
}

// sglangLikenesses are those of the two versions of SGLang's pair.
func sglangLikenesses() []likeness {
	var all []likeness
	for _, p := range sglangPeer().parts {
		all = append(all, likeness{part: "sglang " + p.name, dialect: upstream.SGLangPD, foretold: sglangVersion(p.name).expected(), build: func(t *testing.T, _ string) (assure.Site, deeds, error) {
			// A decode leg that prefill does not come to waits for longer than a refusal may take.
			o := twin.Options{Model: "smol", Pace: time.Millisecond, PerToken: 20 * time.Microsecond, Wait: 2200 * time.Millisecond}
			first := o
			first.Pool = sglangPrefillPool
			ep, ed, err := twin.Pair("sglang-"+p.name, first, o)
			if err != nil {
				return assure.Site{}, nil, err
			}
			proxy, err := tamperWith(listen(t, ep))
			if err != nil {
				return assure.Site{}, nil, err
			}
			t.Cleanup(proxy.end)
			return assure.Site{Dialect: upstream.SGLangPD, Model: "smol", Served: "smol", Prefill: proxy.url, Decode: listen(t, ed), Bootstrap: "127.0.0.1:8998"},
				deeds{
					"cut-prompt":   func(context.Context) error { return proxy.arm() },
					"whole-prompt": func(context.Context) error { return proxy.disarm() },
					"kill-prefill": func(context.Context) error { ep.Kill(); return nil },
				}, nil
		}})
	}
	return all
}

// lives are the faults by which a twin dies and comes back.
func lives(e *twin.Twin) deeds {
	return deeds{
		"kill":  func(context.Context) error { e.Kill(); return nil },
		"start": func(context.Context) error { e.Revive(); return nil },
	}
}

// page reads what the driver has written of one part: the outcome of each case, straight
// at the engine.
func page(text, part string) map[string]assure.Outcome {
	_, text, found := strings.Cut(text, "<!-- begin "+part+" -->\n")
	text, _, ended := strings.Cut(text, "<!-- end "+part+" -->\n")
	if !found || !ended {
		return nil
	}
	all, column := map[string]assure.Outcome{}, 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		for i, c := range cells {
			if strings.TrimSpace(c) == assure.Direct.String() && strings.Contains(line, "case") {
				column = i
			}
		}
		name, isCase := strings.CutPrefix(strings.TrimSpace(line), "| `")
		if !isCase || column == 0 || column >= len(cells) {
			continue
		}
		name, _, _ = strings.Cut(name, "`")
		var o assure.Outcome
		if o.UnmarshalText([]byte(strings.Trim(cells[column], " *"))) == nil {
			all[name] = o
		}
	}
	return all
}

// TestPage: the table is read as it is written.
func TestPage(t *testing.T) {
	report := assure.Report{Ways: []assure.Way{assure.Direct, assure.Bulkhead}, Results: []assure.Result{
		{Case: "a", Way: assure.Direct, Outcome: assure.Red}, {Case: "a", Way: assure.Bulkhead, Outcome: assure.Green},
		{Case: "b", Way: assure.Direct, Outcome: assure.Green}, {Case: "c", Way: assure.Direct, Outcome: assure.Skip},
		{Case: "d", Way: assure.Direct, Outcome: assure.Red, Withheld: true},
	}}
	text := (&section{peer: "p", part: "q", title: "P", reports: []assure.Report{report}}).render()
	if got := page(text, "p q"); len(got) != 3 || got["a"] != assure.Red || got["b"] != assure.Green || got["c"] != assure.Skip {
		t.Errorf("read %v from\n%s", got, text)
	}
	if got := page(text, "p other"); got != nil {
		t.Errorf("read %v of a part that is not there", got)
	}
}

// TestTwinsAreLikeTheirEngines tries the cases straight at the twins, and compares them
// one by one with what docs/interop.md tells of the engines.
func TestTwinsAreLikeTheirEngines(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "docs", "interop.md"))
	if err != nil {
		t.Fatal(err)
	}
	type trial struct{ name, wrong string }
	var trials []*trial
	var running sync.WaitGroup
	var timed []func() // those that measure times come when the others are over
	for _, l := range likenesses() {
		told := page(string(data), l.part)
		for _, c := range assure.For(assure.Cases(), l.dialect) {
			want, written := told[c.Name]
			switch {
			case c.Withheld:
				continue
			case told == nil:
				want = l.foretold.of(c.Name, assure.Direct)
			case !written:
				continue // the engine was not tried
			}
			one := &trial{name: strings.ReplaceAll(l.part, " ", "/") + "/" + c.Name}
			trials = append(trials, one)
			if strings.Contains(c.Name, "timing") {
				timed = append(timed, func() { one.wrong = l.compare(t, c, want) })
				continue
			}
			running.Go(func() { one.wrong = l.compare(t, c, want) }) // most of a case is waiting
		}
	}
	running.Wait()
	for _, try := range timed {
		try()
	}
	for _, one := range trials {
		t.Run(one.name, func(t *testing.T) {
			if one.wrong != "" {
				t.Error(one.wrong)
			}
		})
	}
	for _, d := range differences() {
		if !slices.ContainsFunc(trials, func(one *trial) bool { return one.name == strings.ReplaceAll(d.part, " ", "/")+"/"+d.name }) {
			t.Errorf("%s, %s: listed as a difference, and not compared", d.part, d.name)
		}
	}
}

// compare tries one case at a twin of its own, and says what is not as it should be.
func (l likeness) compare(t *testing.T, c assure.Case, want assure.Outcome) string {
	site, faults, err := l.build(t, c.Name)
	if err != nil {
		return err.Error()
	}
	report, err := assure.Run(t.Context(), site, assure.Options{Only: []string{c.Name}, Ways: []assure.Way{assure.Direct}, Kills: true, Timeout: 30 * time.Second, Faults: faults})
	if err != nil {
		return err.Error()
	}
	got := report.Results[0]
	i := slices.IndexFunc(differences(), func(d difference) bool { return d.part == l.part && d.name == c.Name })
	switch {
	case i < 0 && got.Outcome != want:
		return fmt.Sprintf("the twin is %s where the engine is %s: %s (%s)", got.Outcome, want, got.Why, got.Control)
	case i >= 0 && got.Outcome == want:
		return fmt.Sprintf("the difference is listed and is none any more: both are %s", want)
	case i >= 0 && got.Outcome != differences()[i].twin:
		return fmt.Sprintf("the twin is %s, listed as %s: %s", got.Outcome, differences()[i].twin, got.Why)
	}
	return ""
}
