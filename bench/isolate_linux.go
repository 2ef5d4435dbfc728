package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unsafe"
)

// isolate runs this program again, with the same arguments, in a network namespace of
// its own, with facts in front. Some of the programs that are measured bind every
// interface; there, there is only loopback. made is false if no such namespace can be made.
func isolate(ctx context.Context, f foreign, args []string) (made bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	flag, err := f.arg()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{insideFlag, flag}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if id := os.Geteuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second // it ends what it started
	if err := cmd.Start(); err != nil {
		return false, err
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return true, errInside // it has said why
	}
	return true, err
}

// loopback sets the loopback interface of a fresh namespace up.
func loopback() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("bench: set loopback up: %w", err)
	}
	defer func() { _ = syscall.Close(s) }() // nothing was written
	// struct ifreq: the name, then a union of 24 bytes whose first two are the flags.
	request := struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP | syscall.IFF_RUNNING}
	copy(request.name[:], "lo")
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); e != 0 {
		return fmt.Errorf("bench: set loopback up: %w", e)
	}
	return nil
}
