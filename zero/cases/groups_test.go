package cases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// Section C, parameter groups.

// interleaved puts the parameters into two groups by turns.
func interleaved(p []zero.Param) {
	for i := range p {
		p[i].Group = i % 2
	}
}

// TestE16TwoGroups: groups differ in hyper-parameters and in nothing else: with
// equal ones, weights and norm are those of one group, bit for bit, and so is what
// is read by name (DeepSpeed #5063, #1412).
func TestE16TwoGroups(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		for n, cfg := range allConfigs(func(c *zero.Config) { c.GradientClipping = 1; c.ZeroOptimization.ReduceBucketSize = 100 }) {
			cfg.ZeroOptimization.RoundRobinGradients = n%2 == 0
			one := training{cfg: cfg, world: world, sizes: f1, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.01), init: func(i int) float32 { return float32(i%7) / 8 }, grad: noise(2, world)}
			two := one
			two.edit, two.groups = interleaved, []zero.Group{{}, {Rule: zero.DefaultAdamW(), LRScale: 1}}
			if d := sameTraining(one.must(t), two.must(t)); d != "" {
				t.Fatalf("world %d: two groups change %s\n%+v", world, d, cfg)
			}
		}
		for _, cfg := range allConfigs(nil) {
			tr := training{cfg: cfg, world: world, sizes: f1, edit: interleaved, groups: make([]zero.Group, 2), grad: exact(world)}
			oracleOf(world, 1).check(t, tr, tr.must(t))
		}
	}
}

// TestE16Export: the fp32 weights of every parameter, by name, are the same with one
// group and with two, at any world size.
func TestE16Export(t *testing.T) {
	full := func(world, groups, stage int) map[string]string {
		all := map[string]string{}
		cfg := config(func(c *zero.Config) { c.BF16.Enabled = true; c.ZeroOptimization.Stage = stage })
		_, errs := onRanks(t, world, gated.Options{}, nil, func(c comm.Communicator) error {
			tr := training{sizes: f1, init: func(i int) float32 { return float32(i) + 1.0/3 }}
			var g []zero.Group
			if groups == 2 {
				tr.edit, g = interleaved, make([]zero.Group, 2)
			}
			params := tr.params()
			o, err := zero.New(context.Background(), params, cfg, c, zero.DefaultAdamW(), g...)
			if err != nil {
				return err
			}
			defer o.Close()
			for _, p := range params {
				w, err := o.FullParam(context.Background(), p.Name)
				if err != nil {
					return err
				}
				if i := firstDifference(w, p.Init); i >= 0 {
					return fmt.Errorf("%s is exported as %v, want %v", p.Name, w[i], p.Init[i])
				}
				if c.Rank() == 0 {
					all[p.Name] = fmt.Sprint(w)
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, world := range []int{1, 3, 4} {
		for stage := range 3 {
			one, two := full(world, 1, stage), full(world, 2, stage)
			for name, w := range one {
				if two[name] != w {
					t.Errorf("world %d, stage %d: %s differs with two groups", world, stage, name)
				}
			}
		}
	}
}

// TestE16Decay: a group's weight decay applies once, to its own weights alone.
func TestE16Decay(t *testing.T) {
	decayed := zero.DefaultAdamW()
	decayed.WeightDecay = 0.5
	plain := zero.DefaultAdamW()
	plain.WeightDecay = 0
	for _, world := range []int{1, 2, 4} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = stage })
			out := training{cfg: cfg, world: world, sizes: []int{1, 1}, rule: plain, rate: rate(0.1),
				groups: []zero.Group{{Rule: decayed}, {}}, edit: interleaved,
				init: func(int) float32 { return 1 }, grad: constant(0),
			}.must(t)
			near(t, "weight in the group with decay (0.9025 is decay applied twice)", float64(out.last()[0]), 0.95, 1e-7)
			want(t, "weight in the group without", float64(out.last()[1]), 1)
		}
	}
}

// TestE16Refused: a parameter in two groups, a group that is not there, and ranks
// that group differently are errors with the name.
func TestE16Refused(t *testing.T) {
	cfg := config(nil)
	tr := training{cfg: cfg, world: 2, sizes: f1, groups: make([]zero.Group, 2), grad: constant(1)}
	tr.edit = func(p []zero.Param) { p[4].Name, p[4].Group = "p2", 1 }
	_, errs := tr.run(t)
	wantErrors(t, errs, `"p2"`)
	tr.edit = func(p []zero.Param) { p[3].Group = 2 }
	_, errs = tr.run(t)
	wantErrors(t, errs, `"p3"`, "2")
	_, errs = onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
		params := training{sizes: f1}.params()
		params[3].Group = c.Rank()
		o, err := zero.New(context.Background(), params, cfg, c, zero.SGD{}, make([]zero.Group, 2)...)
		if err == nil {
			o.Close()
		}
		return err
	})
	wantErrors(t, errs, `"p3"`, "group 0", "group 1")
}

// TestE05TinyGroups: two groups of one element each on four ranks.
func TestE05TinyGroups(t *testing.T) {
	decayed := zero.DefaultAdamW()
	decayed.WeightDecay = 0.1
	var first outcome
	for _, world := range []int{1, 2, 4} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) { c.GradientAccumulationSteps = 4 / world; c.ZeroOptimization.Stage = stage })
			out := training{cfg: cfg, world: world, sizes: []int{1, 1}, steps: 4, rule: zero.DefaultAdamW(), rate: rate(0.1), edit: interleaved,
				groups: []zero.Group{{Rule: decayed}, {LRScale: 0.5}}, init: func(int) float32 { return 1 },
				grad: func(s, m, r, i int) float32 { return float32((s+m*world+r+i)%5 - 1) },
			}.must(t)
			if first.results == nil {
				first = out
			}
			if d := sameTraining(first, out); d != "" {
				t.Errorf("world %d, stage %d: %s", world, stage, d)
			}
		}
	}
}

// TestE18TwoGroups: with two groups a dead norm is Inf or NaN too, and not the root
// of two.
func TestE18TwoGroups(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = stage })
		out := training{cfg: cfg, world: 2, sizes: []int{3, 3}, edit: interleaved, groups: make([]zero.Group, 2), grad: constant(nan)}.must(t)
		if r := out.results[0]; r.Norm == r.Norm && r.Norm < 1e300 || r.Applied {
			t.Errorf("stage %d: norm %v, applied %v", stage, r.Norm, r.Applied)
		}
	}
}

// TestE20Predivide: prescale_gradients and gradient_predivide_factor are honoured:
// an fp16 sum that would overflow does not, and what is too small to be divided is
// lost, which is the documented price. They are refused where they make no sense.
func TestE20Predivide(t *testing.T) {
	for _, tc := range []struct {
		prescale bool
		factor   float64
	}{{true, 1}, {false, 2}, {false, 4}} {
		for n, cfg := range allConfigs(func(c *zero.Config) {
			c.FP16.Enabled, c.FP16.LossScale = true, 1
			c.DataTypes.GradAccumDType = "fp16"
			c.PrescaleGradients, c.GradientPredivideFactor = tc.prescale, tc.factor
		}) {
			if cfg.CommunicationDataType = "fp16"; n%2 == 1 {
				continue // the matrix' other wire format
			}
			name := fmt.Sprintf("prescale %v, factor %g, stage %d", tc.prescale, tc.factor, cfg.ZeroOptimization.Stage)
			out := training{cfg: cfg, world: 2, sizes: []int{3}, grad: constant(65504)}.must(t)
			if r := out.results[0]; !r.Applied || out.last()[0] != -65504 {
				t.Errorf("%s: mean of 65504 twice: applied %v, %v", name, r.Applied, -out.last()[0])
			}
			out = training{cfg: cfg, world: 2, sizes: []int{3}, grad: constant(0x1p-24)}.must(t)
			want(t, name+": mean of 2^-24 twice, divided in fp16", -float64(out.last()[0]), 0)
		}
	}
	for _, change := range []func(*zero.Config){
		func(c *zero.Config) { c.GradientPredivideFactor = 0 },
		func(c *zero.Config) { c.GradientPredivideFactor = -2 },
		func(c *zero.Config) { c.GradientPredivideFactor = float64(inf) },
		func(c *zero.Config) { c.PrescaleGradients, c.GradientPredivideFactor = true, 2 },
	} {
		wantError(t, "Validate", config(change).Validate(), "gradient_predivide_factor")
	}
	if err := config(func(c *zero.Config) { c.GradientPredivideFactor = 2 }).Validate(); err != nil {
		t.Error(strings.TrimSpace(err.Error()))
	}
}
