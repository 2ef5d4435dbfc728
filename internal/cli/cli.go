// Package cli is the program: configuration, wiring of the packages, the
// subcommands and their exit codes.
//
// What it promises: the environment, the arguments and the clock are read here
// and nowhere below. Exit code 0 is success, 1 a check that failed, 2 wrong
// usage or configuration, 3 a failure at run time. What must not come in: logic
// that another package could hold.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // a check did not pass
	exitUsage   = 2 // arguments or configuration are wrong
	exitRuntime = 3 // something failed while running
)

// System is what the program may use of the system.
type System struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Signals returns a context that ends on an interrupt or a termination.
	Signals func(context.Context) (context.Context, context.CancelFunc)
	// Reloads returns a channel that gets a value each time the configuration is
	// to be read again.
	Reloads func() <-chan os.Signal
	// NoDumps keeps this process's memory out of core dumps.
	NoDumps func() error
}

// private keeps the memory of a process that serves out of dumps, or says that it
// could not.
func (s System) private() {
	if err := s.NoDumps(); err != nil {
		fmt.Fprintf(s.Stderr, "note: %s\n", strings.TrimPrefix(err.Error(), "cli: "))
	}
}

// OS is the real system.
func OS() System {
	return System{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		Signals: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			context.AfterFunc(ctx, stop) // a second one ends the process at once
			return ctx, stop
		},
		Reloads: func() <-chan os.Signal {
			c := make(chan os.Signal, 1)
			signal.Notify(c, syscall.SIGHUP)
			return c
		},
		NoDumps: noDumps,
	}
}

// Version is the version of the program.
const Version = "0.1.0"

// command is one subcommand.
type command struct {
	name  string
	brief string
	run   func(context.Context, System, []string) error
}

func commands() []command {
	return []command{
		{"up", "run a gateway, a prefill and a decode worker on this machine", up},
		{"serve", "run the gateway in front of engines", runServe},
		{"worker", "run one prefill or decode worker", runWorker},
		{"config", "check, print or begin a configuration of serve", runConfig},
		{"key", "make an API key for a tenant", runKey},
		{"explain", "show one request of a running gateway", runExplain},
		{"posture", "show which rules hold on which route", runPosture},
		{"redgreen", "try the known leaks on your own engines", runRedgreen},
		{"twin", "run a scripted engine that misbehaves on demand", runTwin},
		{"shadow", "show what a control in shadow let pass", runShadow},
		{"drill", "show the incidents, with the guards off and on", runDrill},
		{"prove", "explore the hand-off protocol exhaustively", runProve},
		{"model", "write the built-in model to a file that llama.cpp runs", runModel},
		{"certs", "make certificates for workers on several hosts", runCerts},
		{"version", "print the version", func(_ context.Context, s System, _ []string) error {
			_, err := fmt.Fprintln(s.Stdout, "bulkhead", Version)
			return err
		}},
	}
}

// exit is an error with an exit code.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string { return e.err.Error() }
func (e exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return exit{exitUsage, fmt.Errorf(format, args...)} }

// errFailed is a check that did not pass; what failed was printed.
var errFailed = exit{exitFailed, errors.New("failed")}

// Main runs the program and returns its exit code.
func Main(args []string, s System) int {
	ctx, cancel := s.Signals(context.Background())
	defer cancel()
	if len(args) > 1 && args[0] == "help" {
		args = []string{args[1], "-h"}
	}
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		printUsage(s.Stdout)
		return exitOK
	}
	if args[0] == "--version" || args[0] == "-version" {
		args[0] = "version"
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return report(s, c.name, c.run(ctx, s, args[1:]))
		}
	}
	fmt.Fprintf(s.Stderr, "bulkhead: there is no command %q; see bulkhead help\n", args[0])
	return exitUsage
}

func printUsage(w io.Writer) {
	fmt.Fprintln(w, "Bulkhead keeps one tenant's prompts out of another tenant's answers.")
	fmt.Fprintln(w, "\nUsage: bulkhead COMMAND [flags]")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.brief)
	}
	fmt.Fprintln(w, "\nbulkhead COMMAND -h lists the flags of a command.")
}

// report turns a command's error into an exit code and a line for people.
func report(s System, name string, err error) int {
	var e exit
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errFailed):
		return exitFailed
	}
	fmt.Fprintf(s.Stderr, "bulkhead %s: %s\n", name, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "cli: "), "admin: "))
	if errors.As(err, &e) {
		return e.code
	}
	return exitRuntime
}

// flags makes a flag set that prints to the command's own output. about is one line, or
// more for what a reader should know before the flags.
func flags(s System, name, about string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // report says what is wrong, once
	f.Usage = func() {
		for line := range strings.SplitSeq("bulkhead "+name+": "+strings.TrimRight(about, "\n"), "\n") {
			if strings.HasPrefix(line, " ") {
				fmt.Fprintln(s.Stdout, line)
			} else {
				printWrapped(s.Stdout, "", line)
			}
		}
		printFlags(s.Stdout, f)
	}
	return f
}

// helpWidth is how wide the help of a command is, in characters.
const helpWidth = 80

// printFlags lists the flags as they are written, with their defaults.
func printFlags(w io.Writer, f *flag.FlagSet) {
	head := "\nFlags:\n"
	f.VisitAll(func(x *flag.Flag) {
		kind, text := flag.UnquoteUsage(x)
		if d := x.DefValue; d != "" && d != "false" && d != "0" && d != "0s" && !strings.Contains(text, "default") {
			text += " (default " + d + ")"
		}
		switch kind {
		case "string", "value":
			kind = "VALUE"
		case "int":
			kind = "N"
		case "duration":
			kind = "TIME"
		}
		fmt.Fprintf(w, "%s  --%s\n", head, strings.TrimSpace(x.Name+" "+kind))
		printWrapped(w, "        ", text)
		head = ""
	})
}

// printWrapped writes a text in lines that begin with indent.
func printWrapped(w io.Writer, indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && len(line)+len(word) > helpWidth {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// readFlags parses flags. A wrong one is an error that says where the flags are listed.
func readFlags(f *flag.FlagSet, args []string) error {
	help := f.Usage
	f.Usage = func() {} // the whole list would bury the error
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help()
		return err
	case err == nil:
		f.Usage = help
		return nil
	}
	text := strings.Replace(err.Error(), "flag provided but not defined: -", "there is no flag --", 1)
	text = strings.Replace(text, "flag needs an argument: -", "a value is missing behind --", 1)
	text = strings.Replace(text, " for flag -", " for --", 1)
	return usage("%s (bulkhead %s -h lists the flags)", text, f.Name())
}

// parse reads the flags of a command that takes no other arguments.
func parse(f *flag.FlagSet, args []string) error {
	if err := readFlags(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return usage("unexpected argument %q", f.Arg(0))
	}
	return nil
}
