package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

// alone says whether this process sees no network but loopback.
func alone() bool {
	all, err := net.Interfaces()
	if err != nil {
		return false
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			return false
		}
	}
	return true
}

// isolate runs this program again, with the same arguments, in a network namespace of its
// own, and returns its exit code. What it starts there cannot be reached from elsewhere,
// whatever address it binds.
func isolate(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, "interop: find this program:", err)
		return exitFailed
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if id := os.Geteuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	// The child gets the terminal's interrupt itself, and ends what it started.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintf(stderr, "!! SKIPPED, which is no pass: no network namespace can be made here (%v): run as root\n", err)
	return exitMissing
}

// loopback sets the loopback interface of a fresh namespace up.
func loopback() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("interop: set loopback up: %w", err)
	}
	defer func() { _ = syscall.Close(s) }()
	// struct ifreq: the name, then a union of 24 bytes whose first two are the flags.
	request := struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP | syscall.IFF_RUNNING}
	copy(request.name[:], "lo")
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); e != 0 {
		return fmt.Errorf("interop: set loopback up: %w", e)
	}
	return nil
}
