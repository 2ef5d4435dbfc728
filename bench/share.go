package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
)

// shareLimit is how long one size may take.
const shareLimit = 20 * time.Second

// longPrompt is the prompt that the budget speaks of, in tokens.
const longPrompt = 8000

// share measures how much of a whole request seal and verify take: prefill at one
// thread, the pages over loopback TCP with two streams, decode of 128 tokens,
// one after the other.
func share(ctx context.Context, s settings) ([]figure, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var figures []figure
	for _, x := range [...]struct {
		name             string
		tokens, requests int
		alg              digest.Algorithm
	}{
		{"1k", shortPrompt, s.count(40), digest.XXH3}, {"1k", shortPrompt, s.count(20), digest.GMAC},
		{"8k", longPrompt, s.long, digest.XXH3}, {"8k", longPrompt, min(s.long, 2), digest.GMAC},
	} {
		if x.requests == 0 {
			continue
		}
		f, err := shareOf(ctx, x.tokens, x.requests, x.name, x.alg)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

func shareOf(ctx context.Context, tokens, requests int, name string, alg digest.Algorithm) ([]figure, error) {
	move, end := tcpMover()
	defer end()
	e, err := newEngine(tokens+answerSize, alg, move)
	if err != nil {
		return nil, err
	}
	var checks, all, whole, moved, stall []float64
	cold := 0
	if tokens == shortPrompt && requests > 1 {
		cold = 1 // requests that are not counted; a long one is warm when it comes to the checks
	}
	err = repeat(ctx, requests+cold, shareLimit, func(i int) error {
		text, want := recitation(tokens, answerSize, uint64(i))
		l, answer, err := e.serve(llm.Bytes{}.Text(text), answerSize, guarded)
		if err != nil {
			return err
		}
		if !recites(answer, want) {
			return errAnswer
		}
		if i < cold {
			return nil
		}
		total := float64(l.sum(partCompute, partDigest, partBind, partMove, partSeal, partVerify, partDecode).wall)
		held := float64(l.sum(partSeal, partVerify).wall)
		checks, stall = append(checks, 100*held/total), append(stall, held/1e6)
		all = append(all, 100*float64(l.sum(partDigest, partBind, partSeal, partVerify).wall)/total)
		whole, moved = append(whole, total/1e6), append(moved, float64(l[partMove].wall)/1e6)
		return nil
	})
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("share.%s_%s_", name, alg)
	what := fmt.Sprintf("%s, %s-token prompt", alg, name)
	interval := bootstrap(checks)
	f := newFigure(id+"seal_verify", "seal + verify, share of a whole request, "+what, percent, interval)
	if alg == digest.XXH3 { // the budget is the default's
		f = f.held(budget{atMost, 0.5, 0.2}, interval, nil)
	}
	figures := []figure{
		f,
		newFigure(id+"all", "the same with prefill's digests and the MAC, "+what, percent, bootstrap(all)),
	}
	if alg == digest.XXH3 {
		figures = append(figures,
			newFigure(id+"request", "whole request, "+what+", 128 tokens out", milliseconds, bootstrap(whole)),
			newFigure(id+"stall", "of it: seal + verify, for which decode's other streams wait, "+what, milliseconds, bootstrap(stall)),
			newFigure(id+"move", "of it: the pages over loopback TCP, "+what, milliseconds, bootstrap(moved)))
	}
	return figures, nil
}
