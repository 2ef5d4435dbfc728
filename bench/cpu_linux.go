package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Clocks of clock_gettime(2). getrusage(2) lags by up to a tick of the scheduler, and
// /proc/PID/stat counts in ticks of 10 ms.
const (
	clockProcess = 2
	clockThread  = 3
)

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// processCPU is the processor time of this process, user and system.
func processCPU() time.Duration {
	t, _ := readClock(clockProcess)
	return t
}

// threadCPU is the processor time of this thread. The caller must be locked to it.
func threadCPU() time.Duration {
	t, _ := readClock(clockThread)
	return t
}

// cpuOf is the processor time of another process, with all threads that it ever had:
// the clock that clock_getcpuclockid(3) names.
func cpuOf(pid int) (time.Duration, bool) { return readClock(uintptr(^pid<<3 | clockProcess)) }

// childrenCPU is the processor time of the children that were waited for.
func childrenCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// groupOf lists the processes of a process group.
func groupOf(leader int) []int {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var all []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name in parentheses may hold anything; state, parent and group follow it.
		rest := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && len(rest) > 2 && rest[2] == strconv.Itoa(leader) {
			all = append(all, pid)
		}
	}
	return all
}

// ownGroup makes a command begin a process group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// askGroup asks a process group to end; who is gone already is no error.
func askGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) }

// killGroup ends a process group at once; who is gone already is no error.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
