package cli

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoDumps looks at itself in a process of its own, before and after.
func TestNoDumps(t *testing.T) {
	const mark = "BULKHEAD_TEST_NO_DUMPS"
	if os.Getenv(mark) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNoDumps$")
		cmd.Env = append(os.Environ(), mark+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dumpable := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if dumpable() != 1 {
		t.Fatal("the process is not dumpable to begin with, so this shows nothing")
	}
	if err := noDumps(); err != nil {
		t.Fatal(err)
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || dumpable() != 0 || core != (unix.Rlimit{}) {
		t.Errorf("dumpable %d, core limit %+v, %v", dumpable(), core, err)
	}
	if err := noDumps(); err != nil {
		t.Errorf("once more: %v", err)
	}
}
