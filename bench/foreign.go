package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// insideFlag, first among the arguments, says that this is the inner one of two
// programs, in a network namespace with nothing but loopback. What the outer one has
// found is in the second argument.
const insideFlag = "-inside"

// errInside says that the inner program failed; it has said why.
var errInside = errors.New("bench: the measurement failed")

// foreign is the programs that are compared and are not this one. What is not there is
// in Missing, with the reason.
type foreign struct {
	Bulkhead string            // the program that was built from this tree, or given
	Programs map[string]string // paths, by the names of contenders
	Missing  map[string]string
	Scratch  string // folder, of the outer program
}

func (f foreign) arg() (string, error) {
	b, err := json.Marshal(f)
	return string(b), err
}

// Limits of preparing.
const (
	buildTime   = 5 * time.Minute
	installTime = 10 * time.Minute
)

// find builds Bulkhead into dir, unless given names a program, and finds the others. The
// install scripts of interop fetch what is not there, once, by pinned hashes.
func find(ctx context.Context, dir, given string, routers routing, says io.Writer) (foreign, error) {
	f := foreign{Bulkhead: given, Programs: map[string]string{}, Missing: map[string]string{}, Scratch: dir}
	root, err := moduleRoot()
	if err != nil {
		return f, err
	}
	if given == "" {
		f.Bulkhead = filepath.Join(dir, "bulkhead")
		ctx, cancel := context.WithTimeout(ctx, buildTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", f.Bulkhead, "./cmd/bulkhead")
		cmd.Dir = root
		if said, err := cmd.CombinedOutput(); err != nil {
			return f, fmt.Errorf("bench: build bulkhead: %w\n%s", err, said)
		}
	} else if f.Bulkhead, err = filepath.Abs(given); err != nil {
		return f, err
	}
	if path, err := exec.LookPath("nginx"); err == nil {
		f.Programs[nameNginx] = path
	} else {
		f.Missing[nameNginx] = "no nginx is installed (Debian: apt-get install nginx-light)"
	}
	for _, name := range [...]string{nameSGLang, nameSMG, nameVLLM} {
		if routers == withoutRouters {
			f.Missing[name] = "it was not asked for"
			continue
		}
		fmt.Fprintf(says, "%s: install, or find that it is there ...\n", name)
		if path, err := install(ctx, root, name); err != nil {
			f.Missing[name] = err.Error()
		} else {
			f.Programs[name] = path
		}
	}
	return f, nil
}

// routing says whether routers of others are measured.
type routing int

const (
	withRouters routing = iota
	withoutRouters
)

// moduleRoot is the folder of this module.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("bench: run it in a checkout of this module: there is no go.mod")
		}
		dir = up
	}
}

// install runs the install script of a router and returns its program.
func install(ctx context.Context, root, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "interop", "routers", "install.sh"), name)
	ownGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("interop/routers/install.sh %s: %w: %s", name, err, lines[len(lines)-1])
	}
	for line := range strings.Lines(string(out)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "PROGRAM="); ok {
			return path, nil
		}
	}
	return "", fmt.Errorf("interop/routers/install.sh %s names no program", name)
}
