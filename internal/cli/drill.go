package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bulkhead.dev/bulkhead/internal/drill"
)

// runDrill is bulkhead drill. It succeeds only if every run without guards
// leaked and every guarded run refused or answered right.
func runDrill(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "drill", "show the incidents on the embedded engine, guards off and on\n"+
		"usage: bulkhead drill [flags] [NAME ...]; names: "+strings.Join(drill.Names(), ", "))
	guards := f.String("guards", "both", "runs to make: off, on or both")
	asJSON := f.Bool("json", false, "print one JSON document, schema "+drill.Schema)
	if err := readFlags(f, args); err != nil {
		return err
	}
	which, err := drill.ParseWhich(*guards)
	if err != nil {
		return exit{exitUsage, err}
	}
	for _, name := range f.Args() {
		if strings.HasPrefix(name, "-") {
			return usage("%s: flags come before the names of drills", name)
		}
		if !slices.Contains(drill.Names(), name) {
			return usage("there is no drill %q; there are %s", name, strings.Join(drill.Names(), ", "))
		}
	}
	all, err := drill.Drill(ctx, which, f.Args(), func(r drill.Result) {
		if !*asJSON {
			drill.Print(sys.Stdout, r)
		}
	})
	if err != nil {
		return err
	}
	report := drill.NewReport(all)
	if *asJSON {
		enc := json.NewEncoder(sys.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		_, err = fmt.Fprintln(sys.Stdout, report.Summary())
	}
	if err == nil && !report.Pass {
		return errFailed
	}
	return err
}
