//go:build !linux

package cli

// noDumps does nothing here: see dump_linux.go for what and why. Whether a core
// is written is up to the system's own settings.
func noDumps() error { return nil }
