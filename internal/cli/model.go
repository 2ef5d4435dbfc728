package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"bulkhead.dev/bulkhead/internal/llm"
)

// runModel is bulkhead model.
func runModel(_ context.Context, sys System, args []string) error {
	f := flags(sys, "model", "write the built-in model to a file that llama.cpp runs\nusage: bulkhead model export --gguf FILE")
	path := f.String("gguf", "", "the new `FILE`")
	verb := ""
	if len(args) > 0 && args[0] == "export" {
		verb, args = args[0], args[1:]
	}
	if err := parse(f, args); err != nil {
		return err
	}
	if verb == "" || *path == "" {
		return usage("want export --gguf FILE")
	}
	file, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return exit{exitUsage, err}
	}
	if err := errors.Join(llm.WriteRecall(file), file.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(sys.Stdout, "%s: the model recall, for llama-server -m %s\n", *path, *path)
	return err
}
