//go:build !linux

package main

import (
	"context"
	"fmt"
	"io"
)

func alone() bool { return false }

func isolate(_ context.Context, _ []string, _, stderr io.Writer) int {
	fmt.Fprintln(stderr, "!! SKIPPED, which is no pass: this peer needs a network namespace of its own, which is Linux")
	return exitMissing
}

func loopback() error { return nil }
