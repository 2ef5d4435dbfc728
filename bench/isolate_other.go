//go:build !linux

package main

import (
	"context"
	"errors"
)

func isolate(context.Context, foreign, []string) (made bool, err error) {
	return false, errors.New("bench: there are network namespaces on Linux only")
}

func loopback() error { return nil }
