// Package config is the shape of the configuration files: how they are read, what may
// stand in them, and their JSON schema.
//
// What it promises: a file is taken whole or refused with the place, the path and a
// sentence, and no error holds a value of the file. Whatever the reader refuses by its
// shape the schema refuses too. What must not come in: the environment, the clock (now
// is an argument), the network, the reading of secrets, and defaults that belong to the
// package which uses them.
package config

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
)

// errorf is an error of a configuration as people read it.
func errorf(format string, args ...any) error {
	return fmt.Errorf("configuration: "+format, args...)
}

// Marshal writes a configuration as a file that can be read again.
func Marshal(c any) ([]byte, error) {
	data, err := yaml.MarshalWithOptions(c, yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("config: write: %w", err)
	}
	return append(bytes.TrimRight(data, "\n"), '\n'), nil
}

// Problems collects what is wrong with a file.
type Problems struct {
	Doc  *Document
	list []error
}

// Add adds a problem of the setting at a path.
func (p *Problems) Add(path, format string, args ...any) {
	p.list = append(p.list, p.Doc.Wrong(path, format, args...))
}

// Err is all of them, or nil.
func (p *Problems) Err() error { return errors.Join(p.list...) }
