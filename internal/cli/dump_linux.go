package cli

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noDumps keeps this process's memory, which holds keys, prompts and answers of
// all tenants, out of core dumps, and out of the reach of a debugger that another
// process of the same user starts. A child process must do it again.
func noDumps() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("cli: switch core dumps off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cli: make the process undumpable: %w", err)
	}
	return nil
}
