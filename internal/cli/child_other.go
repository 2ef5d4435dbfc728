//go:build !unix

package cli

import (
	"net"
	"os"
	"os/exec"
)

// handOver frees the port for the child to take: files cannot be passed on here.
func handOver(ln net.Listener) (*os.File, error) { return nil, ln.Close() }

// detach does nothing here: an interrupt reaches the children too, and they
// stop on it.
func detach(*exec.Cmd) {}
