package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

// TestNetcheckMeasuresTheLocalEngine, and train plan takes what it writes.
func TestNetcheckMeasuresTheLocalEngine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net.json")
	code, stdout, stderr := command("netcheck", "-world", "2", "-max", "1e6", "-out", path, "-config", "../../configs/zero2.toml")
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, want := range []string{"engine       local, 2 ranks", "256 KiB", "memcpy", "model        reduce-scatter", "reduce_bucket_size of", "communication of a step"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output does not contain %q:\n%s", want, stdout)
		}
	}
	code, stdout, stderr = command("plan", "-config", "../../configs/zero2.toml", "-net", path, "-forward-ms", "10", "-backward-ms", "20", "-world", "1,2,1024", "-stage", "2")
	if code != 0 || !strings.Contains(stdout, "time of a step") || !strings.Contains(stdout, "takes for granted") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	// One rank accumulates the four micro-batches of the configuration, and sends nothing.
	if !regexp.MustCompile(`(?m)^ *2 +1 +4 +120\.00 +120\.00 +0\.00 +- +0\.00 +0\.00`).MatchString(stdout) {
		t.Errorf("no line of one rank:\n%s", stdout)
	}
}

func TestNetcheckRefusesWhatItCannotMeasure(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`{"World": 1}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"netcheck", "-world", "0"}, "-world 0"},
		{[]string{"netcheck", "-max", "5"}, "-max 5"},
		{[]string{"netcheck", "-set", "run.seed=1"}, "-config"},
		{[]string{"netcheck", "-overlap-ms", "-3"}, "-overlap-ms"},
		{[]string{"netcheck", "x"}, `"x"`},
		{[]string{"plan", "-params", "1e6", "-net", "nowhere.json"}, "nowhere.json"},
		{[]string{"plan", "-params", "1e6", "-net", bad}, "netcheck -out"},
		{[]string{"plan", "-params", "1e6", "-forward-ms", "3"}, "-net"},
	} {
		code, _, stderr := command(c.args...)
		if code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d: %s", c.args, code, stderr)
		}
	}
}

// TestFitFindsTheLine that the times lie on.
func TestFitFindsTheLine(t *testing.T) {
	want := line{Latency: 40e-6, PerByte: 1 / 3e9}
	n := network{World: 4}
	for bytes := 1 << 12; bytes <= 1<<26; bytes *= 4 {
		s := want.seconds(0.75 * float64(bytes))
		n.Points = append(n.Points, point{Bytes: bytes, ReduceScatter: s, AllGather: 2 * s})
	}
	n.fit()
	near := func(got, want float64) bool { return math.Abs(got/want-1) < 1e-6 }
	if !near(n.Scatter.Latency, want.Latency) || !near(n.Scatter.PerByte, want.PerByte) || !near(n.Gather.PerByte, 2*want.PerByte) {
		t.Errorf("%+v, %+v", n.Scatter, n.Gather)
	}
	// A reduction of the suggested bucket takes 95 % of its time for its bytes.
	if b := n.bucket(); math.Abs(want.Latency/want.seconds(0.75*float64(b))-0.05) > 1e-3 {
		t.Errorf("bucket of %d bytes", b)
	}
}

// TestExtrapolation: latency along the line through two measurements, or in proportion
// to the other ranks.
func TestExtrapolation(t *testing.T) {
	two := network{World: 2, Scatter: line{10e-6, 1e-9}}
	four := network{World: 4, Scatter: line{16e-6, 2e-9}}
	for _, c := range []struct {
		measured []network
		world    int
		want     line
	}{
		{[]network{two}, 2, line{10e-6, 1e-9}},
		{[]network{two}, 101, line{1000e-6, 1e-9}},
		{[]network{two, four}, 2, line{10e-6, 1e-9}},
		{[]network{two, four}, 3, line{13e-6, 1e-9}},
		{[]network{two, four}, 1024, line{(10 + 3*1022) * 1e-6, 2e-9}},
	} {
		got := at(c.measured, c.world).Scatter
		if math.Abs(got.Latency-c.want.Latency) > 1e-12 || got.PerByte != c.want.PerByte {
			t.Errorf("%d measurements, %d ranks: %+v, want %+v", len(c.measured), c.world, got, c.want)
		}
	}
}

// TestSimulatedStep holds the simulation against sums on paper: four equal buckets.
func TestSimulatedStep(t *testing.T) {
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.ReduceBucketSize = 1000
	n := &network{World: 2, Scatter: line{Latency: 1e-3}, Gather: line{Latency: 2e-3}}
	for _, c := range []struct {
		overlap  bool
		accum    int
		backward float64 // ms
		want     float64 // ms, without norm 2 and weights 2
	}{
		{false, 1, 8, 5 + 8 + 4},
		{true, 1, 8, 5 + 8 + 1},       // the last bucket is ready at the end
		{true, 1, 2, 5 + 0.5 + 4},     // the first is ready after 0.5
		{true, 3, 8, 3 * (5 + 8 + 1)}, // in global order every backward is reduced
		{false, 2, 8, 2 * (5 + 8 + 4)},
	} {
		s := scenario{params: []zero.Param{{Name: "p", Shape: []int{4000}}}, cfg: cfg, rule: zero.SGD{}}
		s.cfg.ZeroOptimization.OverlapComm = c.overlap
		s.cfg.GradientAccumulationSteps = c.accum
		rows, err := s.predict([]int{2}, []int{2})
		if err != nil {
			t.Fatal(err)
		}
		got := n.step(rows[0], compute{forward: 5e-3, backward: c.backward / 1e3})
		if len(rows[0].plan.Buckets) != 4 || math.Abs(1e3*got.total-c.want-4) > 1e-9 || math.Abs(1e3*got.gradients-4*float64(c.accum)) > 1e-9 {
			t.Errorf("%+v: %+v of %d buckets, want %g ms", c, got, len(rows[0].plan.Buckets), c.want+4)
		}
	}
}

// TestMeasurementsAreWrittenAsTheyAre.
func TestMeasurementsAreWrittenAsTheyAre(t *testing.T) {
	n := network{Engine: "x", World: 2, Points: []point{{Bytes: 4096, ReduceScatter: 1, AllGather: 2, Memcpy: 3}}}
	n.fit()
	raw, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "n.json")
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := readNetworks([]string{path})
	if err != nil || len(got) != 1 || got[0].Scatter != n.Scatter || got[0].Points[0] != n.Points[0] {
		t.Errorf("%+v, %v", got, err)
	}
}
