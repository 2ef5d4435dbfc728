package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
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
			{Name: "guards", What: "on against off", Elapsed: 1000, Others: &others, found: found{Figures: []figure{
				pairedFigure("guards.decode_cpu", "decode throughput", paired{loss, control}).held(throughputBudget(), loss, &control),
			}}},
			{Name: "gateway", What: "small requests", Elapsed: 500, found: found{Figures: []figure{
				newFigure("gateway.plain_c1_p50", "p50", ratio, ratioTo).against(nameProxy).checked(interval{value: 1, low: 0.99, high: 1.01, n: 7}).held(budget{atMost, 1.3, 1.1}, ratioTo, nil),
				newFigure("gateway.c1_cpu_gateway", "cpu for a request", microseconds, unknown).held(budget{atMost, 8, 5}, unknown, nil).note("Of nothing."),
				newFigure("large.rss_gateway", "peak RSS", megabytes, exactly(30)).held(budget{atMost, 40, 25}, exactly(30), nil),
				newFigure("gateway.c16_rate", "requests a second", perSecond, interval{value: 12345.6, low: 12000, high: 13000, n: 3}),
			}, Cells: sampleCells(), Absent: []absence{{nameNginx, "no nginx is installed"}}}},
		},
	}
}

// sampleCells has what a row can have: cells with and without a ratio, a measure that
// somebody has not, one that is not known, and a bar that is too long.
func sampleCells() []cell {
	var all []cell
	for _, r := range rows()[:3] {
		u, scale := r.unitOf(byP50)
		for i, name := range []string{nameDirect, nameProxy, nameSMG, nameOurs} {
			x := float64(i+1) * 1e5 / scale
			at := interval{value: float64(i*i*i) / 2, low: 0.4, high: 13, n: 3}
			all = append(all,
				newCell(&r, name, "p50", u, []float64{x * 2, x, x * 3}).over(r.base, at),
				newCell(&r, name, "rate", perSecond, []float64{1e6 / x, 2e6 / x, 3e6 / x}).over(r.base, at))
			if name != nameDirect {
				all = append(all, newCell(&r, name, "cpu", u, []float64{x}), newCell(&r, name, "rss", megabytes, []float64{math.NaN()}))
			}
		}
	}
	return all
}

// TestGolden holds the forms of bulkhead.bench/v1 and of latest.md.
func TestGolden(t *testing.T) {
	folder, docs := t.TempDir(), t.TempDir()
	var table, chart bytes.Buffer
	if err := sampleReport().deliver(&table, "", folder, docs); err != nil {
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
	for file, name := range map[string]string{"benchmarks.md": "benchmarks.golden.md", chartFile: "gateway.golden.svg"} {
		got, err := os.ReadFile(filepath.Join(docs, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		golden(name, got)
		if name == "gateway.golden.svg" {
			chart.Write(got)
		}
	}
	for d := xml.NewDecoder(&chart); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the chart is no XML: %v", err)
		}
	}
}

// TestProgram runs the program on its smallest scenario and reads what it wrote.
func TestProgram(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "report.json")
	var out bytes.Buffer
	args := []string{"-quick", "-8k=false", "-json", file, "-out", filepath.Join(folder, "results"), "-profile", filepath.Join(folder, "profiles"), "share"}
	if err := bench(context.Background(), args, nil, &out, io.Discard); err != nil {
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
	for _, args := range [][]string{{"nothing"}, {"-nothing"}, {"-rows", "nothing", "gateway"}, {"-bulkhead", "/dev/null", "-routers=false", "-quick", "-rows", "plain_c1", "gateway"}, {"-profile", "/dev/null/x", "share"}} {
		if err := bench(context.Background(), args, nil, io.Discard, io.Discard); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if err := bench(ended, []string{"-quick", "share"}, nil, io.Discard, io.Discard); err == nil {
		t.Error("it went on after its context had ended")
	}
}
