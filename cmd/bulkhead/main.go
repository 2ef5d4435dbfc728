// Command bulkhead keeps one tenant's prompts out of another tenant's answers.
package main

import (
	"os"

	"bulkhead.dev/bulkhead/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.OS()))
}
