//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// Without process groups only the program itself is ended.

func ownGroup(*exec.Cmd) {}

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		p.Kill()
	}
}

func askGroup(pid int) { killGroup(pid) }
