package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// machine is what the figures were measured on. What is not known is empty or null.
type machine struct {
	CPU         string   `json:"cpu"`
	Cores       int      `json:"cores"`
	MemoryBytes *int64   `json:"memory_bytes"`
	OS          string   `json:"os"`
	Arch        string   `json:"arch"`
	Go          string   `json:"go"`
	LoadBefore  *float64 `json:"load_before"` // of the last minute, before anything ran
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version()}
	m.CPU = field("/proc/cpuinfo", "model name", ":")
	if kb, ok := kilobytes(field("/proc/meminfo", "MemTotal", ":")); ok {
		m.MemoryBytes = &kb
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		one, _, _ := strings.Cut(string(b), " ")
		if load, err := strconv.ParseFloat(one, 64); err == nil {
			m.LoadBefore = &load
		}
	}
	return m
}

// field is the value of the first line of a file that begins with name, or "".
func field(file, name, sep string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(line, sep)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kilobytes reads "123 kB" as bytes.
func kilobytes(s string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	return n << 10, err == nil
}

// tick is the unit of /proc/stat.
const tick = 10 * time.Millisecond

// machineBusy is how long all processors together were busy since the start of the
// machine, for whatever process.
func machineBusy() (time.Duration, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	parts := strings.Fields(string(line))
	if len(parts) < 9 || parts[0] != "cpu" {
		return 0, false
	}
	var busy time.Duration
	for i, p := range parts[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 {
			busy += time.Duration(n) * tick
		}
	}
	return busy, true
}

// neighbours measures what other processes take of the machine meanwhile.
type neighbours struct {
	since      time.Time
	busy, ours time.Duration
	known      bool
}

func watchNeighbours() neighbours {
	n := neighbours{since: time.Now()}
	n.busy, n.known = machineBusy()
	n.ours = processCPU() + childrenCPU()
	return n
}

// share is the part of all processors, in percent, that other processes had; nil
// if it is not known. Children of ours must have been waited for.
func (n neighbours) share() *float64 {
	busy, ok := machineBusy()
	if !ok || !n.known {
		return nil
	}
	others := (busy - n.busy) - (processCPU() + childrenCPU() - n.ours)
	all := time.Since(n.since) * time.Duration(runtime.NumCPU())
	percent := max(0, 100*float64(others)/float64(all))
	return &percent
}
