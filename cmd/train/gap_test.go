package main

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
)

// smallGap makes the training of configs/gap.toml a moment's.
var smallGap = []string{
	"-set", "model.layers_per_block=1", "-set", "model.parallel_branches=1", "-set", "data.train_samples=64", "-set", "train_batch_size=4",
}

// TestGapCommand: a small comparison writes curves, configurations, pictures and a page
// that needs no other file; the correct engine's runs are equal bit for bit.
func TestGapCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "gap")
	args := append([]string{"gap", "-config", "../../configs/gap.toml", "-out", out, "-quick", "-steps", "10"}, smallGap...)
	code, stdout, stderr := command(args...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, part := range []string{"losses, norms and hashes of weights in 12 ways to run, 0 differ", "rows of the report are reproduced", "report.html"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("the summary lacks %q:\n%s", part, stdout)
		}
	}
	page := read(t, filepath.Join(out, "report.html"))
	if n := strings.Count(page, `src="data:image/png;base64,`); n != 3 {
		t.Errorf("%d pictures in the page, want 3", n)
	}
	for _, link := range []string{"http:", "https:", "<script", "<link"} {
		if strings.Contains(page, link) {
			t.Errorf("the page needs something from elsewhere: %s", link)
		}
	}
	if n := strings.Count(page, `reproduced</td>`); n != 10 {
		t.Errorf("%d verdicts in the page, want 10", n)
	}
	for _, v := range wrongVariants() {
		if !strings.Contains(page, v.title) {
			t.Errorf("the page lacks %q", v.title)
		}
		if _, err := os.Stat(filepath.Join(out, "csv", v.name+"-seed0", "Train_Samples_train_loss.csv")); err != nil {
			t.Error(err)
		}
		c, err := config.Load(filepath.Join(out, "configs", v.name+"-seed0.toml"), nil, checks()...)
		if err != nil || len(c.Lab.Fault) != len(v.faults) {
			t.Errorf("%s: the configuration has faults %v, want %v; %v", v.name, c.Lab.Fault, v.faults, err)
		}
	}
	if code, _, stderr := command(args...); code != 2 || !strings.Contains(stderr, "not empty") {
		t.Errorf("the same folder again: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := command("gap", "-config", "../../configs/gap.toml"); code != 2 || !strings.Contains(stderr, "-out") {
		t.Errorf("no folder: exit code %d, %s", code, stderr)
	}
}

// TestGapFits: in configs/gap.toml the parameters are as the report's: none is larger
// than a bucket of a sixtieth of the model, and most elements are in ones that are
// larger than a six-hundredth.
func TestGapFits(t *testing.T) {
	g, err := prepareGap(gapOptions{config: "../../configs/gap.toml", out: t.TempDir()}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := plan(g.base)
	if err != nil {
		t.Fatal(err)
	}
	large := 0
	for i := range p.Params() {
		s, _ := p.Span(i)
		if s.Len() > g.elements/60 {
			t.Errorf("%s has %d elements, more than a sixtieth of %d", p.Name(i), s.Len(), g.elements)
		}
		if s.Len() > g.elements/600 {
			large += s.Len()
		}
	}
	if part := float64(large) / float64(g.elements); part < 0.85 {
		t.Errorf("%.2f of the elements are in parameters larger than the smallest bucket, want most", part)
	}
}

// flat is a run whose loss and norm are the same in every step.
func flat(steps int, loss float64) series {
	var c series
	for range steps {
		c.loss, c.norm = append(c.loss, loss), append(c.norm, loss)
	}
	return c
}

// reported is a comparison as the report has it.
func reported() *gap {
	g := &gap{steps: 20, seeds: 2, runs: map[string][]series{}}
	for name, loss := range map[string]float64{
		vGood: 1, vLarger: 1.15, vMost: 1.2, vSixtieth: 4, vSmallest: math.NaN(), vSingle: 1.1, vStage1: 1.22,
		vNon: 1.4, vPingpong: 1.3, vHooksOnly: 1.1,
	} {
		for range g.seeds {
			c := flat(g.steps, loss)
			if loss != loss {
				c.firstBad = 3
			}
			g.runs[name] = append(g.runs[name], c)
		}
	}
	for k, v := range normVariants() {
		n := normRun{v, []float64{5.84, 5.84, 5.84}}
		if k == 0 {
			n.norms = []float64{7.59, 7.59, 7.59}
		}
		g.norms = append(g.norms, n)
	}
	return g
}

// TestGapVerdicts: curves as reported reproduce every row, curves that are all alike
// none, and each row can fail by itself.
func TestGapVerdicts(t *testing.T) {
	for _, r := range reported().rows() {
		if !r.reproduced {
			t.Errorf("curves as reported: %q is %s: %s", r.what, r.verdict(), r.measured)
		}
	}
	g := reported()
	for name := range g.runs {
		g.runs[name] = []series{flat(g.steps, 1), flat(g.steps, 1)}
	}
	for k := range g.norms {
		g.norms[k].norms = []float64{1, 1, 1}
	}
	for _, r := range g.rows() {
		if r.reproduced {
			t.Errorf("curves that are alike: %q is %s: %s", r.what, r.verdict(), r.measured)
		}
	}
	// One seed that comes out otherwise spoils a row.
	for name, row := range map[string]int{vLarger: 1, vMost: 3, vSixtieth: 4, vSmallest: 5, vSingle: 6, vNon: 9} {
		g := reported()
		g.runs[name][1] = flat(g.steps, 1)
		if r := g.rows()[row]; r.reproduced {
			t.Errorf("%s as good as the good run in one seed: %q is %s: %s", name, r.what, r.verdict(), r.measured)
		}
	}
	g = reported()
	g.norms[2].norms[1] = math.Nextafter(5.84, 6)
	if r := g.rows()[8]; r.reproduced {
		t.Errorf("norms that differ in the last bit: %s", r.measured)
	}
}

// TestGapExact: a last bit of a loss, a norm or a weight is a difference.
func TestGapExact(t *testing.T) {
	first := exactRun{series: flat(5, 0.5), weights: 7}
	for k, change := range []func(*exactRun){
		func(r *exactRun) { r.loss[4] = math.Nextafter(0.5, 1) },
		func(r *exactRun) { r.norm[0] = math.Nextafter(0.5, 0) },
		func(r *exactRun) { r.weights++ },
	} {
		r := exactRun{series: flat(5, 0.5), weights: 7}
		g := gap{exact: []exactRun{first, r}}
		if compared, differ := g.judgeExact(); compared != 11 || differ != 0 {
			t.Errorf("%d compared and %d differ, want 11 and 0", compared, differ)
		}
		change(&g.exact[1])
		if _, differ := g.judgeExact(); differ != 1 {
			t.Errorf("change %d: %d differ, want 1", k, differ)
		}
	}
	// The ways to run leave out what is no knob.
	for _, v := range (&gap{}).ways() {
		for _, s := range v.sets {
			if s == accumBF16 {
				t.Errorf("%s accumulates in bf16", v.title)
			}
		}
	}
	if zero.DefaultConfig().ZeroOptimization.ReductionOrder != zero.OrderGlobal {
		t.Error("the default order is not global: ways to run with other world sizes differ by right")
	}
}
