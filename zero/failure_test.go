package zero

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

var errLost = errors.New("lost the disk")

// TestRankFails: when a rank fails in any phase, every rank returns an error with
// its number and the cause; nobody waits for the timeout, and no goroutine stays.
func TestRankFails(t *testing.T) {
	for _, phase := range []string{"before the first gradient", "between gradients", "after the backward", "before the step", "after the step"} {
		for stage := range 3 {
			for _, overlap := range []bool{false, true} {
				cfg := config(func(c *Config) {
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = overlap
					c.ZeroOptimization.ReduceBucketSize = 5
				})
				start := time.Now()
				errs := ranks(t, 3, func(c comm.Communicator) error {
					o, err := New(context.Background(), trial{cfg: cfg, sizes: fixture}.params(), cfg, c, sgd{})
					if err != nil {
						return err
					}
					defer o.Close()
					err = failingLoop(o, c.Rank() == 1, phase)
					if err != nil {
						c.Abort(err)
					}
					return err
				})
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("%s: took %v", phase, d)
				}
				for r, err := range errs {
					if !errors.Is(err, errLost) {
						t.Errorf("%s, stage %d, overlap %v: rank %d returns %v", phase, stage, overlap, r, err)
					}
					if r != 1 {
						wantError(t, err, "rank 1")
					}
				}
			}
		}
	}
}

// failingLoop trains on F1; the rank that fails does so in phase of step 2.
func failingLoop(o *Optimizer, fails bool, phase string) error {
	ctx := context.Background()
	for s := range 4 {
		fail := fails && s == 1
		for i := len(fixture) - 1; i >= 0; i-- {
			if fail && (i == len(fixture)-1 && phase == "before the first gradient" || i == 2 && phase == "between gradients") {
				return errLost
			}
			if err := o.GradReady(ctx, i, make([]float32, fixture[i])); err != nil {
				return err
			}
		}
		if fail && phase == "after the backward" {
			return errLost
		}
		if err := o.EndBackward(ctx); err != nil {
			return err
		}
		if fail && phase == "before the step" {
			return errLost
		}
		if _, err := o.Step(ctx, 0); err != nil {
			return err
		}
		if fail && phase == "after the step" {
			return errLost
		}
	}
	return nil
}

// TestRankIsLate: a rank that never comes is an error on the others after the
// timeout, with the operation and the rank; one that closes early is one at once.
func TestRankIsLate(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config(func(c *Config) { c.ZeroOptimization.Stage = 2; c.ZeroOptimization.OverlapComm = true })
			errs := ranks(t, 2, func(c comm.Communicator) error {
				o, err := New(context.Background(), trial{cfg: cfg, sizes: fixture}.params(), cfg, c, sgd{})
				if err != nil {
					return err
				}
				defer o.Close()
				if c.Rank() == 1 {
					if !closes {
						time.Sleep(time.Second)
					}
					return nil
				}
				return failingLoop(o, false, "")
			}, local.WithTimeout(300*time.Millisecond))
			want := "waited 300ms for rank 1"
			if closes {
				want = "rank 1: closed its communicator"
			}
			wantError(t, errs[0], `reduce-scatter "gradient bucket" of step 1, bucket 0`, want)
			if errs[1] != nil {
				t.Error(errs[1])
			}
		})
	}
}

// TestRanksDiffer: ranks that are set up differently all get an error with the
// first difference and both sides of it.
func TestRanksDiffer(t *testing.T) {
	base := func() ([]Param, Config, Rule) {
		return []Param{
			{Name: "a", Shape: []int{2, 3}, Init: make([]float32, 6)},
			{Name: "b", Shape: []int{4}, Init: make([]float32, 4)},
		}, config(nil), DefaultAdamW()
	}
	for _, tc := range []struct {
		name   string
		change func(p []Param, c *Config, r *Rule) []Param
		want   []string
	}{
		{"bucket size", func(p []Param, c *Config, _ *Rule) []Param { c.ZeroOptimization.ReduceBucketSize = 7; return p }, []string{"zero_optimization.reduce_bucket_size = 500000000", "zero_optimization.reduce_bucket_size = 7"}},
		{"stage", func(p []Param, c *Config, _ *Rule) []Param { c.ZeroOptimization.Stage = 2; return p }, []string{"zero_optimization.stage = 0", "zero_optimization.stage = 2"}},
		{"format", func(p []Param, c *Config, _ *Rule) []Param { c.BF16.Enabled = true; return p }, []string{"param fp32", "param bf16"}},
		{"rule", func(p []Param, _ *Config, r *Rule) []Param { *r = sgd{}; return p }, []string{"AdamW", "SGD"}},
		{"hyper-parameter", func(p []Param, _ *Config, r *Rule) []Param {
			a := DefaultAdamW()
			a.WeightDecay = 0.5
			*r = a
			return p
		}, []string{"weight_decay=0.01", "weight_decay=0.5"}},
		{"name", func(p []Param, _ *Config, _ *Rule) []Param { p[1].Name = "c"; return p }, []string{`parameter 1: "b"`, `parameter 1: "c"`}},
		{"order", func(p []Param, _ *Config, _ *Rule) []Param { p[0], p[1] = p[1], p[0]; return p }, []string{`parameter 0: "a"`, `parameter 0: "b"`}},
		{"shape", func(p []Param, _ *Config, _ *Rule) []Param { p[0].Shape = []int{3, 2}; return p }, []string{"shape [2 3]", "shape [3 2]"}},
		{"frozen", func(p []Param, _ *Config, _ *Rule) []Param { p[0].Frozen = true; return p }, []string{"frozen"}},
		{"count", func(p []Param, _ *Config, _ *Rule) []Param { return p[:1] }, []string{"parameters = 2", "parameters = 1"}},
		{"weights", func(p []Param, _ *Config, _ *Rule) []Param { p[1].Init[3] = 1; return p }, []string{`"b"`, "initial weights"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := ranks(t, 3, func(c comm.Communicator) error {
				p, cfg, rule := base()
				if c.Rank() == 2 {
					p = tc.change(p, &cfg, &rule)
				}
				o, err := New(context.Background(), p, cfg, c, rule)
				if err == nil {
					o.Close()
				}
				return err
			})
			for _, err := range errs {
				wantError(t, err, append(tc.want, "rank 0 has", "rank 2 has")...)
			}
		})
	}
}

// TestNewRefuses: what no layout can express is an error before anything runs,
// and the other ranks do not wait for the one that has it.
func TestNewRefuses(t *testing.T) {
	shared := dtype.Make(dtype.F32, 10)
	param := func(name string, n int) Param { return Param{Name: name, Shape: []int{n}, Init: make([]float32, n)} }
	with := func(p Param, change func(*Param)) Param { change(&p); return p }
	for _, tc := range []struct {
		name   string
		params []Param
		want   []string
	}{
		{"none", nil, []string{"no parameters to train", "empty"}},
		{"all frozen", []Param{with(param("a", 2), func(p *Param) { p.Frozen = true })}, []string{"no parameters to train", "frozen"}},
		{"same name", []Param{param("a", 2), param("b", 3), param("a", 2)}, []string{"parameters 0 and 2", `"a"`}},
		{"same memory", []Param{
			with(param("a", 4), func(p *Param) { p.Value = shared.Slice(0, 4) }),
			with(param("b", 4), func(p *Param) { p.Value = shared.Slice(4, 8) }),
			with(param("tied", 4), func(p *Param) { p.Value = shared.Slice(0, 4) }),
		}, []string{`"a"`, `"tied"`, "share memory"}},
		{"overlapping memory", []Param{
			with(param("a", 4), func(p *Param) { p.Value = shared.Slice(0, 4) }),
			with(param("b", 4), func(p *Param) { p.Value = shared.Slice(3, 7) }),
		}, []string{`"a"`, `"b"`, "share memory"}},
		{"some Values", []Param{with(param("a", 4), func(p *Param) { p.Value = shared.Slice(0, 4) }), param("b", 2)}, []string{`"a"`, `"b"`, "Value"}},
		{"negative shape", []Param{with(param("a", 0), func(p *Param) { p.Shape = []int{-1} })}, []string{`"a"`, "[-1]"}},
		{"huge shape", []Param{with(param("a", 0), func(p *Param) { p.Shape = []int{1 << 40, 1 << 40} })}, []string{`"a"`, "too many"}},
		{"wrong Init", []Param{with(param("a", 4), func(p *Param) { p.Init = p.Init[:3] })}, []string{`"a"`, "3", "4"}},
		{"wrong Value", []Param{with(param("a", 4), func(p *Param) { p.Value = shared.Slice(0, 3) })}, []string{`"a"`, "3", "4"}},
		{"wrong format", []Param{with(param("a", 4), func(p *Param) { p.Value = dtype.Make(dtype.BF16, 4) })}, []string{`"a"`, "bf16", "fp32"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := ranks(t, 2, func(c comm.Communicator) error {
				params := tc.params
				if c.Rank() == 1 {
					params = []Param{param("fine", 3)}
				}
				_, err := New(context.Background(), params, config(nil), c, sgd{})
				return err
			})
			wantError(t, errs[0], tc.want...)
			wantError(t, errs[1], append(tc.want, "rank 0")...)
		})
	}
}

// TestUsage: a wrong call is an error that says so and changes nothing: the
// training goes on to the right result.
func TestUsage(t *testing.T) {
	cfg := config(func(c *Config) { c.GradientAccumulationSteps = 2; c.ZeroOptimization.Stage = 2 })
	ctx := context.Background()
	errs := ranks(t, 2, func(c comm.Communicator) error {
		params := trial{cfg: cfg, sizes: []int{3, 2, 4}, frozen: map[int]bool{2: true}}.params()
		o, err := New(ctx, params, cfg, c, sgd{})
		if err != nil {
			return err
		}
		ones := []float32{1, 1, 1}
		step := func(lr float64) error { _, err := o.Step(ctx, lr); return err }
		wantError(t, o.GradReady(ctx, 3, ones), "parameter 3", "there are 3")
		wantError(t, o.GradReady(ctx, -1, ones), "parameter -1")
		wantError(t, o.GradReady(ctx, 1, ones), `"p1"`, "3 elements", "want 2")
		wantError(t, o.GradReady(ctx, 2, ones), `"p2"`, "frozen")
		wantError(t, step(1), "0 of 2 backwards")
		for m := range 2 {
			if err := o.GradReady(ctx, 0, ones); err != nil {
				return err
			}
			wantError(t, o.GradReady(ctx, 0, ones), `"p0"`, "second gradient")
			if err := o.EndBackward(ctx); err != nil {
				return err
			}
			if m == 0 {
				wantError(t, step(1), "1 of 2 backwards", "gradient_accumulation_steps")
			}
		}
		wantError(t, o.GradReady(ctx, 0, ones), "backward 3", "gradient_accumulation_steps = 2")
		wantError(t, o.EndBackward(ctx), "backward 3")
		wantError(t, step(-1), "learning rate -1")
		if err := step(1); err != nil {
			return err
		}
		if v := o.Value(0).At(2); v != -1 {
			return fmt.Errorf("weight %v, want -1", v)
		}
		if tried, applied := o.Steps(); tried != 1 || applied != 1 {
			return fmt.Errorf("%d steps tried, %d applied", tried, applied)
		}
		o.Close()
		o.Close()
		wantError(t, o.GradReady(ctx, 0, ones), "closed")
		wantError(t, o.EndBackward(ctx), "closed")
		wantError(t, step(1), "closed")
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestFrozenKeepsValue: a frozen parameter's compute copy is its rounded initial
// weights, or what the caller had in it.
func TestFrozenKeepsValue(t *testing.T) {
	for _, given := range []bool{false, true} {
		cfg := config(func(c *Config) { c.BF16.Enabled = true; c.ZeroOptimization.Stage = 2 })
		errs := ranks(t, 2, func(c comm.Communicator) error {
			tr := trial{cfg: cfg, world: 2, sizes: []int{3, 5, 2}, frozen: map[int]bool{1: true}, given: given, init: func(i int) float32 { return float32(i) + 1.0/1024 },
				grad: exactGrad(2), steps: 2, lr: 1}
			params := tr.params()
			first := 3.0
			if given {
				params[1].Init = nil
				params[1].Value.U16[0] = dtype.BF16FromFloat32(42)
				first = 42
			}
			o, err := New(context.Background(), params, cfg, c, sgd{})
			if err != nil {
				return err
			}
			defer o.Close()
			if err := tr.train(o, c, new(outcome)); err != nil {
				return err
			}
			if v := o.Value(1); v.Len() != 5 || v.At(0) != first {
				return fmt.Errorf("frozen value %v, want %v first", v, first)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}
