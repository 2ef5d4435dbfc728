package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml"

	"bulkhead.dev/bulkhead/internal/gateway"
)

//go:embed example.yaml
var example string

// noEvents is for a gateway that is only checked.
type noEvents struct{}

func (noEvents) Request(gateway.RequestEvent) {}

// runConfig is bulkhead config.
func runConfig(_ context.Context, sys System, args []string) error {
	f := flags(sys, "config", "check, print or begin a configuration of serve\n"+
		"usage: bulkhead config check FILE   read it and its secrets as serve does, and say what is wrong\n"+
		"       bulkhead config print FILE   print it with its defaults; secrets stay references\n"+
		"       bulkhead config init [FILE]  write a commented example to a new file, or to standard output")
	if err := f.Parse(args); err != nil {
		return exit{exitUsage, err}
	}
	verb, path := f.Arg(0), f.Arg(1)
	switch {
	case f.NArg() > 2, verb != "check" && verb != "print" && verb != "init", verb != "init" && path == "":
		return usage("want check FILE, print FILE or init [FILE]")
	case verb == "check":
		return checkConfig(sys, path)
	case verb == "print":
		return printConfig(sys, path)
	}
	return initConfig(sys, path)
}

func checkConfig(sys System, path string) error {
	s, err := loadSite(sys, path, noEvents{})
	if err != nil {
		return err
	}
	for _, n := range s.notes {
		fmt.Fprintln(sys.Stderr, "note:", n)
	}
	_, err = fmt.Fprintf(sys.Stdout, "%s is sound: %s\n", path, count(s.config))
	return err
}

func printConfig(sys System, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return exit{exitUsage, err}
	}
	defer file.Close()
	c, _, err := decodeServe(file)
	if err != nil {
		return err
	}
	data, err := yaml.MarshalWithOptions(c, yaml.IndentSequence(true))
	if err != nil {
		return fmt.Errorf("cli: print configuration: %w", err)
	}
	_, err = fmt.Fprintf(sys.Stdout, "%s\n", bytes.TrimRight(data, "\n"))
	return err
}

// initConfig writes the example. It overwrites nothing.
func initConfig(sys System, path string) error {
	if path == "" {
		_, err := io.WriteString(sys.Stdout, example)
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return exit{exitUsage, err}
	}
	_, err = io.WriteString(file, example)
	return errors.Join(err, file.Close())
}

// runKey is bulkhead key. The key is shown here and nowhere else.
func runKey(_ context.Context, sys System, args []string) error {
	f := flags(sys, "key", "make an API key for a tenant: prints the key, once, and the line with its hash for the tenant's keys")
	pepper := f.String("pepper", "", "the pepper of the configuration, as env:NAME or file:PATH")
	if err := parse(f, args); err != nil {
		return err
	}
	if *pepper == "" {
		return usage("--pepper is required, as env:NAME or file:PATH")
	}
	text, err := Secret(*pepper).resolve(sys, fromFile, "pepper")
	if err != nil {
		return err
	}
	secret, err := hexKey("pepper", text)
	if err != nil {
		return err
	}
	key, hash, err := gateway.NewKey(rand.Reader, secret)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(sys.Stdout, "%s\n- hash: %q\n", key, hash)
	return err
}
