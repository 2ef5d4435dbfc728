package main

import (
	"syscall"
	"time"
	"unsafe"
)

// Clocks of clock_gettime(2). getrusage(2) lags by up to a tick of the scheduler.
const (
	clockProcess = 2
	clockThread  = 3
)

func readClock(id uintptr) time.Duration {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}

// processCPU is the processor time of this process, user and system.
func processCPU() time.Duration { return readClock(clockProcess) }

// threadCPU is the processor time of this thread. The caller must be locked to it.
func threadCPU() time.Duration { return readClock(clockThread) }

// childrenCPU is the processor time of the children that were waited for.
func childrenCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
