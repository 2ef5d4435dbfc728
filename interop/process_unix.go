//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command begin a process group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a process group at once. Who is gone already is no error.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// askGroup asks a process group to end.
func askGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) }
