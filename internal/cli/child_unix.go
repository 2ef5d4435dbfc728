//go:build unix

package cli

import (
	"net"
	"os"
	"os/exec"
	"syscall"
)

// handOver makes of a listener the file that a child takes over.
func handOver(ln net.Listener) (*os.File, error) {
	return ln.(*net.TCPListener).File()
}

// detach gives a child a process group of its own, so that an interrupt at the
// terminal reaches the parent only, which then stops its children in order.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
