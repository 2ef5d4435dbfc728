// Command drive starts Bulkhead, reads the address and the key that it prints,
// runs both SDK checks against it, and stops it by its process id. With -through it
// starts the named engines one after the other, puts `bulkhead serve` in front of each,
// and runs the npm package's session there. It exits 0 only if all checks passed and
// every program ended well; an engine that cannot be had is skipped aloud.
//
//	go run ./drive [-bin path] [-node=false] [-- arguments of bulkhead]
//	go run ./drive [-bin path] -through llamacpp-10434,llamacpp-11549,twin-openai,twin-llamacpp-11549
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	startLimit = 60 * time.Second // from the start until address and key are printed
	checkLimit = 5 * time.Minute  // for one SDK's checks
	stopLimit  = 30 * time.Second // from the interrupt until the process has ended
)

func main() {
	bin := flag.String("bin", "../../bin/bulkhead", "the program to start")
	node := flag.Bool("node", true, "run the npm package too")
	through := flag.String("through", "", "run the session through bulkhead serve against these engines instead")
	flag.Parse()
	args := flag.Args()
	if len(args) == 0 {
		args = []string{"up", "--port", "0"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *through != "" {
		err = sessions(ctx, *bin, strings.Split(*through, ","))
	} else if err = drive(ctx, *bin, args, *node); err == nil {
		fmt.Println("ok  both SDKs, and a clean end")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "drive:", err)
		os.Exit(1)
	}
}

// sessions runs the session against each of the named engines.
func sessions(ctx context.Context, bin string, names []string) error {
	all := engines()
	for _, name := range names {
		i := slices.IndexFunc(all, func(e engine) bool { return e.name == name })
		if i < 0 {
			return fmt.Errorf("there is no engine %q", name)
		}
		err := throughGateway(ctx, bin, all[i])
		if errors.Is(err, errMissing) {
			fmt.Printf("SKIPPED  %s: %v\n", name, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func drive(ctx context.Context, bin string, args []string, node bool) (err error) {
	server := exec.Command(bin, args...)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	fmt.Printf("started %s %q as process %d\n", bin, args, server.Process.Pid)
	found := make(chan endpoint, 1)
	read := make(chan error, 1)
	go func() { read <- watch(out, found) }()
	var where endpoint
	defer func() { err = errors.Join(err, stop(server, out, read, where)) }()

	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case where = <-found:
	case <-limit.C:
		return fmt.Errorf("no address and key within %s", startLimit)
	case err := <-read:
		read <- err
		return errors.New("it ended before it printed an address and a key")
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := check(ctx, where, "go", "run", "./gocheck"); err != nil {
		return err
	}
	if !node {
		return nil
	}
	return check(ctx, where, "node", "check.mjs")
}

// An endpoint is what the program prints for its user.
type endpoint struct {
	base *url.URL
	key  string
}

// watch reads everything that the program prints, so that it never blocks, and
// sends the first address and key once it has both. It never prints the key.
func watch(out io.Reader, found chan<- endpoint) error {
	address := regexp.MustCompile(`https?://[^\s"'<>]+:[0-9]+`)
	bearer := regexp.MustCompile(`Bearer\s+([^\s"'\\]+)`)
	var e endpoint
	lines := bufio.NewScanner(out)
	for sent := false; lines.Scan(); {
		if sent {
			continue
		}
		if m := address.FindString(lines.Text()); m != "" && e.base == nil {
			base, err := url.Parse(m)
			if err != nil {
				return err
			}
			e.base = base
		}
		if m := bearer.FindStringSubmatch(lines.Text()); m != nil {
			e.key = m[1]
		}
		if e.base != nil && e.key != "" {
			found <- e
			sent = true
		}
	}
	return lines.Err()
}

func check(ctx context.Context, where endpoint, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "BASE_URL="+where.base.JoinPath("v1").String(), "API_KEY="+where.key)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %q: %w", name, args, err)
	}
	return nil
}

// stop interrupts the server and waits until it has ended. A server that must
// be killed, ends badly, or leaves its port open is an error.
func stop(server *exec.Cmd, out io.Closer, read <-chan error, where endpoint) error {
	var problems []error
	if err := server.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		problems = append(problems, err)
	}
	limit := time.AfterFunc(stopLimit, func() {
		// Wait tells whether this was needed. A child that outlives its parent
		// would hold the pipe open, so the reading ends here too.
		_ = server.Process.Kill()
		_ = out.Close()
	})
	defer limit.Stop()
	problems = append(problems, <-read) // all output is read before Wait closes the pipe
	if err := server.Wait(); err != nil {
		problems = append(problems, fmt.Errorf("it did not end well: %w", err))
	}
	if where.base != nil {
		if conn, err := net.DialTimeout("tcp", where.base.Host, time.Second); err == nil {
			problems = append(problems, errors.New("its port is still open"), conn.Close())
		}
	}
	return errors.Join(problems...)
}
