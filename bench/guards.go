package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
)

// errAnswer says that the engine did not recite what it must. What it costs to
// answer wrongly is of no interest.
var errAnswer = errors.New("bench: the embedded engine answered wrongly")

// guardsLimit is how long the comparison may take.
const guardsLimit = 70 * time.Second

// Sizes of the paired comparison, in tokens.
const (
	shortPrompt = 1000
	answerSize  = 128
)

// throughputBudget is what the guards may cost of throughput, in percent.
func throughputBudget() budget { return budget{atLeast, -0.5, -0.1} }

// guards compares the embedded engine with the guards on and off, in both roles
// and at one thread: digests, MAC, seal and verify. Requests of all arms have the
// same prompt and get the same pages, so that nothing but the guards differs.
func guards(ctx context.Context, s settings) ([]figure, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e, err := newEngine(shortPrompt+answerSize, digest.XXH3, copyPages)
	if err != nil {
		return nil, err
	}
	text, want := recitation(shortPrompt, answerSize, 1)
	prompt := llm.Bytes{}.Text(text)
	var booked [2][]float64 // what the checks add, by role
	run := func(arm int) ([]float64, error) {
		g := guarded
		if arm == armOff {
			g = unguarded
		}
		l, answer, err := e.serve(prompt, answerSize, g)
		if err == nil && !recites(answer, want) {
			err = errAnswer
		}
		if g == guarded {
			prefill, decode := l.sum(partDigest, partBind), l.sum(partSeal, partVerify)
			booked[0] = append(booked[0], 100*float64(prefill.cpu)/float64(l[partCompute].cpu))
			booked[1] = append(booked[1], 100*float64(decode.cpu)/float64(l[partDecode].cpu))
		}
		return metricsOf(&l), err
	}
	if _, err := runBlock(run); err != nil { // warm
		return nil, err
	}
	var blocks [][]block // by metric
	err = repeat(ctx, s.count(120), guardsLimit, func(int) error {
		b, err := runBlock(run)
		if err != nil {
			return err
		}
		if blocks == nil {
			blocks = make([][]block, len(b))
		}
		for i := range b {
			blocks[i] = append(blocks[i], b[i])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	figures := append(guardFigures(blocks),
		newFigure("guards.prefill_booked", "digests and MAC, over the rest of prefill's cpu time, as booked", percent, bootstrap(booked[0])),
		newFigure("guards.decode_booked", "seal and verify, over the rest of decode's cpu time, as booked", percent, bootstrap(booked[1])))
	tags, err := tagShare(ctx, e, prompt, s)
	return append(figures, tags...), err
}

// metricsOf is what is compared: what each role does of a request, first on the
// processor and then on the wall.
func metricsOf(l *laps) []float64 {
	prefill := l.sum(partCompute, partDigest, partBind)
	decode := l.sum(partSeal, partVerify, partDecode)
	return []float64{
		float64(prefill.cpu), float64(decode.cpu), float64(prefill.cpu + decode.cpu),
		float64(prefill.wall), float64(decode.wall), float64(prefill.wall + decode.wall),
	}
}

// guardFigures has the metrics in the order of metricsOf.
func guardFigures(blocks [][]block) []figure {
	rows := [...]struct {
		id, what string
		tokens   int
	}{
		{"prefill", "prefill throughput, 1k-token prompt", shortPrompt},
		{"decode", "decode throughput, 128 tokens after 1k (seal and verify in it)", answerSize},
		{"request", "prefill and decode together", shortPrompt + answerSize},
	}
	var figures []figure
	for i, clock := range [...]string{"cpu", "wall"} {
		for j, r := range rows {
			p := pairedOf(blocks[i*len(rows)+j], rates)
			f := pairedFigure("guards."+r.id+"_"+clock, r.what+", by "+clock+" time", p)
			figures = append(figures, f.held(throughputBudget(), p.effect, &p.control))
		}
	}
	for j, r := range rows[:2] { // how fast the thing is that was compared
		var speed []float64
		for _, b := range blocks[j] {
			for _, ns := range b[armOn] {
				speed = append(speed, float64(r.tokens)/ns*float64(time.Second))
			}
		}
		figures = append(figures, newFigure("guards."+r.id+"_speed", "embedded "+r.id+", guards on, one thread, by cpu time", tokensSecond, bootstrap(speed)))
	}
	return figures
}

// tagShare bounds what the tag check costs, which cannot be switched off: the
// whole of every call by which a decode step gets at its pages, as a share of
// the step.
func tagShare(ctx context.Context, e *engine, prompt []llm.Token, s settings) ([]figure, error) {
	seq, err := e.decode.pool.Local(kv.Domain{1}, len(prompt)+answerSize, nil)
	if err != nil {
		return nil, err
	}
	if err := e.decode.step(seq, prompt); err != nil {
		return nil, err
	}
	next, err := e.sampler.Next(e.decode.item[0].Logits)
	if err != nil {
		return nil, err
	}
	layout := seq.Layout()
	const passes = 200
	var shares []float64
	err = repeat(ctx, s.count(answerSize), time.Second, func(int) error {
		start := threadCPU()
		if err := e.decode.step(seq, []llm.Token{next}); err != nil {
			return err
		}
		step := threadCPU() - start
		start = threadCPU()
		for i := range passes * layout.Layers * layout.Pages(seq.Tokens()) {
			pages := layout.Pages(seq.Tokens())
			if _, _, err := seq.Rows(i/pages%layout.Layers, i%pages, seq.Tokens()); err != nil {
				return err
			}
		}
		shares = append(shares, 100*float64(threadCPU()-start)/passes/float64(step))
		return nil
	})
	if err != nil {
		return nil, err
	}
	f := newFigure("guards.tag_share", "page access with its tag check, share of a decode step at 1k", percent, bootstrap(shares))
	f = f.note("An upper bound: it holds the slicing too. The check is in every arm above; it has no switch.")
	return []figure{f}, e.decode.pool.Release(seq)
}
