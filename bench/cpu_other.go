//go:build !linux

package main

import "time"

// Without a precise clock of processor time there are no figures on it.

func processCPU() time.Duration { return 0 }

func threadCPU() time.Duration { return 0 }

func childrenCPU() time.Duration { return 0 }
