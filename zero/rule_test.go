package zero

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// ruleFile is what testdata/rules/rules.py writes.
type ruleFile struct {
	Torch string
	Steps int
	Size  int
	LR    float64
	Cases []struct {
		Rule             string
		Params           ruleParams
		Float32, Float64 ruleTrace
	}
}

type ruleParams struct {
	Betas               *[2]float64
	Eps                 *float64
	WeightDecay         *float64 `json:"weight_decay"`
	Momentum, Dampening float64
	Nesterov            bool
}

type ruleTrace struct {
	Weights [][]float64
	States  map[string][]float64
}

// build makes the rule with PyTorch's parameters over PyTorch's defaults.
func (p ruleParams) build(t *testing.T, name string) Rule {
	t.Helper()
	decay := 0.0
	if p.WeightDecay != nil {
		decay = *p.WeightDecay
	}
	set := func(b1, b2, eps *float64) {
		if p.Betas != nil {
			*b1, *b2 = p.Betas[0], p.Betas[1]
		}
		if p.Eps != nil {
			*eps = *p.Eps
		}
	}
	switch name {
	case "SGD":
		return SGD{Momentum: p.Momentum, Dampening: p.Dampening, WeightDecay: decay, Nesterov: p.Nesterov}
	case "Adam":
		a := DefaultAdam()
		set(&a.Beta1, &a.Beta2, &a.Eps)
		a.WeightDecay = decay
		return a
	case "AdamW":
		a := DefaultAdamW()
		set(&a.Beta1, &a.Beta2, &a.Eps)
		if p.WeightDecay != nil {
			a.WeightDecay = decay
		}
		return a
	case "Lion":
		l := DefaultLion()
		set(&l.Beta1, &l.Beta2, new(float64))
		l.WeightDecay = decay
		return l
	}
	t.Fatalf("unknown rule %q", name)
	return nil
}

// TestRulesAgainstPyTorch: eight steps of every rule are as close to PyTorch's in
// float64 as PyTorch's own in float32 are, within a factor of two and one unit in
// the last place.
func TestRulesAgainstPyTorch(t *testing.T) {
	data, err := os.ReadFile("testdata/rules/rules.json")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleFile
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 12 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		rule := c.Params.build(t, c.Rule)
		t.Run(fmt.Sprint(rule), func(t *testing.T) {
			if err := rule.(interface{ Validate() error }).Validate(); err != nil {
				t.Fatal(err)
			}
			w, states := make([]float32, file.Size), make([][]float32, len(rule.States()))
			for i := range w {
				w[i] = float32(7*i%13-6) / 4
			}
			for k := range states {
				states[k] = make([]float32, file.Size)
			}
			for step := 1; step <= file.Steps; step++ {
				g := make([]float32, file.Size)
				for i := range g {
					g[i] = float32((5*i+3*step*step+i*step)%17-8) / 64
				}
				rule.Update(step, file.LR, w, g, states)
				asClose(t, fmt.Sprintf("weights after step %d", step), w, c.Float32.Weights[step-1], c.Float64.Weights[step-1])
			}
			if len(states) != len(c.Float64.States) {
				t.Errorf("%d states, PyTorch has %d", len(states), len(c.Float64.States))
			}
			for k, name := range rule.States() {
				asClose(t, name, states[k], c.Float32.States[name], c.Float64.States[name])
			}
		})
	}
}

func asClose(t *testing.T, what string, got []float32, in32, in64 []float64) {
	t.Helper()
	if len(in32) != len(got) || len(in64) != len(got) {
		t.Fatalf("%s: %d values, PyTorch has %d and %d", what, len(got), len(in32), len(in64))
	}
	largest, allowed := 0.0, 0.0
	for i := range got {
		largest = max(largest, math.Abs(in64[i]))
		allowed = max(allowed, 2*math.Abs(in32[i]-in64[i]))
	}
	allowed += largest * 0x1p-23
	for i := range got {
		if d := math.Abs(float64(got[i]) - in64[i]); !(d <= allowed) {
			t.Errorf("%s: element %d is %v, PyTorch has %v; %g apart, allowed is %g", what, i, got[i], in64[i], d, allowed)
		}
	}
}

func allRules() []Rule {
	return []Rule{
		SGD{}, SGD{WeightDecay: 0.1}, SGD{Momentum: 0.9, Dampening: 0.1}, SGD{Momentum: 0.9, WeightDecay: 0.2, Nesterov: true},
		Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}, DefaultAdamW(), Lion{Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.1},
	}
}

// TestRulesAreElementwise: a span updated in pieces of any length has the bits of
// the span updated at once.
func TestRulesAreElementwise(t *testing.T) {
	const n = 3*ruleGrain + 17
	for _, rule := range allRules() {
		random := rand.New(rand.NewPCG(1, 2))
		fill := func() []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(random.NormFloat64())
			}
			return x
		}
		whole := append([][]float32{fill()}, make([][]float32, len(rule.States()))...)
		for k := range rule.States() {
			whole[k+1] = make([]float32, n)
		}
		pieces := make([][]float32, len(whole))
		for k := range whole {
			pieces[k] = slices.Clone(whole[k])
		}
		for step := 1; step <= 3; step++ {
			g := fill()
			inPieces := slices.Clone(g)
			rule.Update(step, 0.01, whole[0], g, whole[1:])
			for lo := 0; lo < n; {
				hi := min(n, lo+1+random.IntN(20_000))
				var parts [][]float32
				for _, x := range pieces {
					parts = append(parts, x[lo:hi])
				}
				rule.Update(step, 0.01, parts[0], inPieces[lo:hi], parts[1:])
				lo = hi
			}
		}
		for k := range whole {
			if !sameBits(whole[k], pieces[k]) {
				t.Errorf("%v: array %d of %v differs", rule, k, rule.States())
			}
		}
	}
}

// TestRulesAtEveryStage: the promise of equal bits holds for every rule.
func TestRulesAtEveryStage(t *testing.T) {
	for _, rule := range allRules() {
		var want outcome
		for i, k := range []struct{ stage, world, bucket int }{{0, 1, 5e8}, {1, 2, 100}, {2, 4, 77}, {2, 2, 5e8}} {
			cfg := config(func(c *Config) {
				c.GradientAccumulationSteps = 4 / k.world
				c.ZeroOptimization.Stage = k.stage
				c.ZeroOptimization.ReduceBucketSize = k.bucket
			})
			tr := trial{cfg: cfg, world: k.world, sizes: fixture, rule: rule, steps: 3, lr: 0.01, init: func(i int) float32 { return float32(i%7) - 3 }}
			tr.grad = func(s, m, r, i int) float32 { return float32((i*31+(m*k.world+r)*7+s*3)%29-14) / 10 }
			out := tr.must(t)
			if i == 0 {
				want = out
			} else if err := sameOutcome(want, out); err != nil {
				t.Errorf("%v, stage %d, world %d, bucket %d: %v", rule, k.stage, k.world, k.bucket, err)
			}
		}
		if len(want.states) != len(rule.States()) {
			t.Errorf("%v: %d states", rule, len(want.states))
		}
	}
}

// TestRuleValidation: what cannot be trained with is refused by key.
func TestRuleValidation(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		rule interface{ Validate() error }
		keys []string
	}{
		{SGD{Momentum: -1, Dampening: nan, WeightDecay: math.Inf(1)}, []string{"momentum = -1", "dampening = NaN", "weight_decay = +Inf"}},
		{SGD{Nesterov: true}, []string{"nesterov = true"}},
		{SGD{Momentum: 0.9, Dampening: 0.1, Nesterov: true}, []string{"nesterov = true"}},
		{Adam{Beta1: 1, Beta2: nan, Eps: -1, WeightDecay: -1}, []string{"betas = [1 NaN]", "eps = -1", "weight_decay = -1"}},
		{Lion{Beta1: 0.9, Beta2: 1}, []string{"betas = [0.9 1]"}},
		{Lion{Beta1: 0.9, Beta2: 0.99, WeightDecay: nan}, []string{"weight_decay = NaN"}},
	} {
		err := c.rule.Validate()
		wantError(t, err, c.keys...)
		if err != nil && strings.Count(err.Error(), "\n") != len(c.keys)-1 {
			t.Errorf("%v: %v", c.rule, err)
		}
	}
}

// TestLionSign: a weight without gradient or momentum stays where it is, and NaN is
// not hidden.
func TestLionSign(t *testing.T) {
	w, g, m := []float32{1, 1, 1}, []float32{0, 2, float32(math.NaN())}, make([]float32, 3)
	DefaultLion().Update(1, 0.5, w, g, [][]float32{m})
	if w[0] != 1 || w[1] != 0.5 || w[2] == w[2] {
		t.Errorf("weights %v, want 1, 0.5 and NaN", w)
	}
}

func BenchmarkRules(b *testing.B) {
	const n = 1 << 20
	for _, rule := range allRules() {
		b.Run(fmt.Sprint(rule), func(b *testing.B) {
			w, g := make([]float32, n), make([]float32, n)
			states := make([][]float32, len(rule.States()))
			for k := range states {
				states[k] = make([]float32, n)
			}
			b.SetBytes(int64(4 * n * (3 + 2*len(states))))
			for b.Loop() {
				rule.Update(2, 1e-3, w, g, states)
			}
		})
	}
}
