package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if isChild(os.Args) {
		os.Exit(childMain(os.Args[2]))
	}
	os.Exit(m.Run())
}

// sampleReport has a figure of every form.
func sampleReport() *report {
	load, memory, others := 0.25, int64(24<<30), 4.5
	control := interval{value: 0.01, low: -0.1, high: 0.1, n: 9}
	loss := interval{value: -0.2, low: -0.3, high: -0.1, n: 9}
	ratioTo := interval{value: 1.5, low: 1.4, high: 1.6, n: 7}
	unknown := interval{value: math.NaN(), low: math.Inf(-1), high: math.Inf(1)}
	return &report{
		Schema: schema, Command: "go run ./bench", Started: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Elapsed: 1500,
		Machine: machine{CPU: "a processor", Cores: 2, MemoryBytes: &memory, OS: "linux", Arch: "amd64", Go: "go1.26.8", LoadBefore: &load},
		Scenarios: []section{
			{Name: "guards", What: "on against off", Elapsed: 1000, Others: &others, Figures: []figure{
				pairedFigure("guards.decode_cpu", "decode throughput", paired{loss, control}).held(throughputBudget(), loss, &control),
			}},
			{Name: "gateway", What: "small requests", Elapsed: 500, Figures: []figure{
				newFigure("gateway.c1_p50_proxy", "p50", ratio, ratioTo).against("bare Go reverse proxy").held(budget{atMost, 1.3, 1.1}, ratioTo, nil),
				newFigure("gateway.c1_cpu_gateway", "cpu for a request", microseconds, unknown).held(budget{atMost, 8, 5}, unknown, nil).note("Of nothing."),
				newFigure("large.rss_gateway", "peak RSS", megabytes, exactly(30)).held(budget{atMost, 40, 25}, exactly(30), nil),
				newFigure("gateway.c16_rate", "requests a second", perSecond, interval{value: 12345.6, low: 12000, high: 13000, n: 3}),
			}},
		},
	}
}

// TestGolden holds the forms of bulkhead.bench/v1 and of latest.md.
func TestGolden(t *testing.T) {
	folder := t.TempDir()
	var table bytes.Buffer
	if err := sampleReport().deliver(&table, "", folder); err != nil {
		t.Fatal(err)
	}
	golden := func(name string, got []byte) {
		t.Helper()
		file := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs; got\n%s", file, got)
		}
	}
	golden("table.golden.txt", table.Bytes())
	for _, name := range []string{"latest.json", "latest.md"} {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		golden(strings.Replace(name, ".", ".golden.", 1), got)
	}
}

// TestProgram runs the program on its smallest scenario and reads what it wrote.
func TestProgram(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "report.json")
	var out bytes.Buffer
	args := []string{"-quick", "-8k=false", "-json", file, "-out", filepath.Join(folder, "results"), "-profile", filepath.Join(folder, "profiles"), "share"}
	if err := bench(context.Background(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Schema != "bulkhead.bench/v1" || !strings.HasPrefix(r.Command, "go run ./bench -quick") || r.Machine.Cores < 1 || r.Elapsed < 1 {
		t.Errorf("report: %s", data)
	}
	if len(r.Scenarios) != 1 || r.Scenarios[0].Name != "share" || len(r.Scenarios[0].Figures) < 4 {
		t.Fatalf("scenarios: %s", data)
	}
	for _, f := range r.Scenarios[0].Figures {
		if f.Value == nil || *f.Value <= 0 || f.Unit == percent && *f.Value >= 100 {
			t.Errorf("%s: %v", f.ID, f.Value)
		}
		if !strings.Contains(out.String(), f.What) {
			t.Errorf("%s is not in the table", f.ID)
		}
	}
	for _, name := range []string{"results/latest.md", "results/latest.json", "profiles/share.pprof"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgramRefuses(t *testing.T) {
	for _, args := range [][]string{{"nothing"}, {"-nothing"}, {"-profile", "/dev/null/x", "share"}} {
		if err := bench(context.Background(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if err := bench(ended, []string{"-quick", "share"}, io.Discard, io.Discard); err == nil {
		t.Error("it went on after its context had ended")
	}
}
