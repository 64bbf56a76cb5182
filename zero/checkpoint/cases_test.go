package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// small is a training of parameters of given sizes with a rule, whose gradients the
// test gives.
type small struct {
	world, stage int
	params       []zero.Param
	rule         zero.Rule
	groups       []zero.Group
	edit         func(*zero.Config)
	options      []local.Option
}

func named(sizes ...int) []zero.Param {
	params := make([]zero.Param, len(sizes))
	for i, n := range sizes {
		params[i] = zero.Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}, Init: make([]float32, n)}
	}
	return params
}

func (s small) each(f func(r *rank) error) error {
	return local.Run(context.Background(), s.world, func(ctx context.Context, c comm.Communicator) error {
		cfg := zero.DefaultConfig()
		cfg.ZeroOptimization.Stage, cfg.ZeroOptimization.ReduceBucketSize = s.stage, 100
		cfg.GradientClipping = 0
		if s.edit != nil {
			s.edit(&cfg)
		}
		opt, err := zero.New(ctx, slices.Clone(s.params), cfg, c, s.rule, s.groups...)
		if err != nil {
			return err
		}
		defer opt.Close()
		return f(&rank{ctx: ctx, c: c, opt: opt})
	}, s.options...)
}

func (s small) must(t *testing.T, f func(r *rank) error) {
	t.Helper()
	if err := s.each(f); err != nil {
		t.Fatal(err)
	}
}

// step makes one step with a gradient for each element.
func (r *rank) step(lr float64, grad func(param, i int) float32) error {
	for p, param := range r.opt.Params() {
		if param.Frozen || param.Value.Len() == 0 && len(param.Shape) == 1 && param.Shape[0] == 0 {
			continue
		}
		g := make([]float32, param.Shape[0])
		for i := range g {
			g[i] = grad(p, i)
		}
		if err := r.opt.GradReady(r.ctx, p, g); err != nil {
			return err
		}
	}
	if err := r.opt.EndBackward(r.ctx); err != nil {
		return err
	}
	_, err := r.opt.Step(r.ctx, lr)
	return err
}

func (r *rank) save(dir string, step int) error {
	return NewSaver(r.opt, r.c, Options{Dir: dir}).Save(r.ctx, StepTag(step))
}

// load restores r from the checkpoint of a step.
func (r *rank) load(dir string, step int) error {
	f, err := Open(filepath.Join(dir, StepTag(step)))
	if err != nil {
		return err
	}
	return errors.Join(f.Load(r.ctx, r.opt, r.c), f.Close())
}

func (r *rank) full(name, key string) ([]float32, error) {
	if key == master {
		return r.opt.FullParam(r.ctx, name)
	}
	return r.opt.FullState(r.ctx, name, key)
}

// TestE22StepCount: Adam goes on with its own step count. Moments that are ten steps
// old under a count that starts anew move the weight by 0.2074 and not by 0.1.
func TestE22StepCount(t *testing.T) {
	one := func(int, int) float32 { return 1 }
	for _, at := range []int{0, 10} { // saved before the first step, and after ten
		dir := t.TempDir()
		s := small{world: 2, stage: 2, params: named(1), rule: zero.Adam{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}}
		s.must(t, func(r *rank) error {
			for range at {
				if err := r.step(0.1, one); err != nil {
					return err
				}
			}
			return r.save(dir, at)
		})
		s.world = 1
		s.must(t, func(r *rank) error {
			if err := r.load(dir, at); err != nil {
				return err
			}
			before, err := r.full("p0", master)
			if err != nil {
				return err
			}
			if err := r.step(0.1, one); err != nil {
				return err
			}
			after, err := r.full("p0", master)
			if err != nil {
				return err
			}
			if d := float64(after[0] - before[0]); math.Abs(d+0.099999999) > 1e-6 {
				return fmt.Errorf("step %d moves the weight by %v, want -0.099999999", at+1, d)
			}
			if want := -0.1 * float64(at+1); math.Abs(float64(after[0])-want) > 1e-6 {
				return fmt.Errorf("weight %v after step %d, want %v", after[0], at+1, want)
			}
			return nil
		})
	}
}

// TestE26Repartition: master weights and moments of sizes 5, 3, 6 in two groups go from
// four ranks to 1, 3, 5 and 20 and back, each array equal by name.
func TestE26Repartition(t *testing.T) {
	params := named(5, 3, 6)
	params[1].Group = 1
	fill := func(r *rank) error {
		at := 0
		for _, p := range params {
			w, m, v := make([]float32, p.Shape[0]), make([]float32, p.Shape[0]), make([]float32, p.Shape[0])
			for i := range w {
				w[i], m[i], v[i] = float32(0.1*float64(at)), float32(at)+0.25, float32(at)+0.5
				at++
			}
			if err := errors.Join(r.opt.SetFullParam(r.ctx, p.Name, w), r.opt.SetFullState(r.ctx, p.Name, "exp_avg", m), r.opt.SetFullState(r.ctx, p.Name, "exp_avg_sq", v)); err != nil {
				return err
			}
		}
		return nil
	}
	check := func(r *rank) error {
		at := 0
		for i, p := range params {
			for _, key := range []string{master, "exp_avg", "exp_avg_sq"} {
				x, err := r.full(p.Name, key)
				if err != nil {
					return err
				}
				for i := range x {
					want := map[string]float32{master: float32(0.1 * float64(at+i)), "exp_avg": float32(at+i) + 0.25, "exp_avg_sq": float32(at+i) + 0.5}[key]
					if x[i] != want {
						return fmt.Errorf("%s of %s: element %d is %v, want %v", key, p.Name, i, x[i], want)
					}
				}
			}
			for k := range p.Shape[0] { // compute copy = rounded master
				if want := float32(0.1 * float64(at+k)); float32(r.opt.Value(i).At(k)) != want {
					return fmt.Errorf("weight %d of %s is %v, want %v", k, p.Name, r.opt.Value(i).At(k), want)
				}
			}
			at += p.Shape[0]
		}
		return nil
	}
	for _, stage := range []int{0, 1, 2} {
		dir := t.TempDir()
		s := small{world: 4, stage: stage, params: params, rule: zero.DefaultAdamW(), groups: []zero.Group{{}, {LRScale: 2}}}
		s.must(t, func(r *rank) error {
			if err := r.step(0, func(int, int) float32 { return 0 }); err != nil { // so that there are moments
				return err
			}
			return errors.Join(fill(r), r.save(dir, 1))
		})
		for k, world := range []int{1, 3, 5, 20, 4} {
			s.world = world
			s.must(t, func(r *rank) error {
				return errors.Join(r.load(dir, k+1), check(r), r.save(dir, k+2))
			})
		}
	}
}

// TestE04ZeroSized: a parameter without elements keeps its place and its shape.
func TestE04ZeroSized(t *testing.T) {
	for _, sizes := range [][]int{{8, 0, 24}, {8, 8, 0}, {0, 8, 8}, {16, 0, 16}, {7, 0, 1001}} {
		params := named(sizes...)
		empty := slices.Index(sizes, 0)
		params[empty].Shape = []int{0, 4}
		grad := func(p, i int) float32 { return float32(p+1) * float32(i%5) }
		steps := func(r *rank) error {
			for range 3 {
				for p, n := range sizes {
					if n == 0 {
						continue
					}
					g := make([]float32, n)
					for i := range g {
						g[i] = grad(p, i)
					}
					if err := r.opt.GradReady(r.ctx, p, g); err != nil {
						return err
					}
				}
				if err := r.opt.EndBackward(r.ctx); err != nil {
					return err
				}
				if _, err := r.opt.Step(r.ctx, 0.1); err != nil {
					return err
				}
			}
			return nil
		}
		dir := t.TempDir()
		s := small{world: 2, stage: 2, params: params, rule: zero.DefaultAdamW()}
		s.must(t, func(r *rank) error { return errors.Join(steps(r), r.save(dir, 3)) })
		var resumed, whole [][]float32
		read := func(r *rank, into *[][]float32) error {
			for p := range sizes {
				x, err := r.full(params[p].Name, master)
				if err != nil {
					return err
				}
				if r.c.Rank() == 0 {
					*into = append(*into, x)
				}
			}
			return nil
		}
		s.world = 3
		s.must(t, func(r *rank) error { return errors.Join(r.load(dir, 3), steps(r), read(r, &resumed)) })
		s.must(t, func(r *rank) error { return errors.Join(steps(r), steps(r), read(r, &whole)) })
		if fmt.Sprint(resumed) != fmt.Sprint(whole) {
			t.Errorf("sizes %v: the resumed training differs", sizes)
		}
		f, err := Open(filepath.Join(dir, StepTag(3)))
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := f.Param(params[empty].Name); !ok || !slices.Equal(p.Shape, []int{0, 4}) {
			t.Errorf("sizes %v: the empty parameter is %+v", sizes, p)
		}
		f.Close()
	}
}

// TestE28Frozen: a frozen parameter is in the checkpoint bit for bit at every stage and
// in every format, and in no state; to thaw it is an error that names it.
func TestE28Frozen(t *testing.T) {
	sizes := []int{7, 0, 1001, 64, 3, 130}
	for stage := range 3 {
		for _, format := range []string{"fp32", "bf16", "fp16"} {
			params := named(sizes...)
			params[2].Frozen = true
			known := func(p *zero.Param) {
				p.Init = make([]float32, p.Shape[0])
				for i := range p.Init {
					p.Init[i] = float32(i%251) / 128 // exact in every format
				}
			}
			known(&params[2])
			s := small{world: 4, stage: stage, params: params, rule: zero.DefaultAdamW(), edit: func(c *zero.Config) {
				c.BF16.Enabled, c.FP16.Enabled, c.FP16.InitialScalePower = format == "bf16", format == "fp16", 0
			}}
			dir := t.TempDir()
			s.must(t, func(r *rank) error {
				return errors.Join(r.step(0.1, func(p, i int) float32 { return float32((p + i) % 3) }), r.save(dir, 1))
			})
			states := 0
			f, err := Open(filepath.Join(dir, StepTag(1)))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range f.Manifest().Params {
				if len(p.States) > 0 {
					states += p.Len()
				}
			}
			f.Close()
			if states != 204 {
				t.Errorf("stage %d %s: %d elements have states, want 204", stage, format, states)
			}
			params[2].Init = make([]float32, 1001)
			s.world = 2
			s.must(t, func(r *rank) error {
				if err := r.load(dir, 1); err != nil {
					return err
				}
				for i := range 1001 {
					if r.opt.Value(2).At(i) != float64(i%251)/128 {
						return fmt.Errorf("element %d of the frozen parameter is %v", i, r.opt.Value(2).At(i))
					}
				}
				return nil
			})
			params[2].Frozen = false
			s.must(t, func(r *rank) error {
				if err := r.load(dir, 1); err == nil || !strings.Contains(err.Error(), `"p2"`) {
					return fmt.Errorf("a thawed parameter: error %v", err)
				}
				return nil
			})
		}
	}
}

// TestE36aEMAResumes: the moving average of 0, 1, 2, 3 with decay 0.5 is 2.125 after
// three steps, the last of which is made at another world size.
func TestE36aEMAResumes(t *testing.T) {
	dir := t.TempDir()
	s := small{world: 1, stage: 2, params: named(1), rule: zero.EMA{Rule: zero.SGD{}, Decay: 0.5}}
	down := func(int, int) float32 { return -1 }
	s.must(t, func(r *rank) error { return errors.Join(r.step(1, down), r.step(1, down), r.save(dir, 2)) })
	s.world = 3
	s.must(t, func(r *rank) error {
		if err := errors.Join(r.load(dir, 2), r.step(1, down)); err != nil {
			return err
		}
		ema, err := r.full("p0", "ema")
		if err == nil && ema[0] != 2.125 {
			err = fmt.Errorf("moving average %v, want 2.125", ema[0])
		}
		return err
	})
}

// TestE30SaveAndLoadDisagree: one rank that saves alone, ranks that load different
// checkpoints.
func TestE30SaveAndLoadDisagree(t *testing.T) {
	begin := time.Now()
	dir := t.TempDir()
	s := small{world: 2, stage: 2, params: named(10), rule: zero.DefaultAdamW(), options: []local.Option{local.WithTimeout(300 * time.Millisecond)}}
	one := func(int, int) float32 { return 1 }
	s.must(t, func(r *rank) error {
		return errors.Join(r.step(0.1, one), r.save(dir, 1), r.step(0.1, one), r.save(dir, 2))
	})
	err := s.each(func(r *rank) error {
		if r.c.Rank() == 1 {
			time.Sleep(time.Second) // longer than the timeout
			return nil
		}
		return r.save(dir, 3)
	})
	if err == nil || !strings.Contains(err.Error(), `"step-000003"`) || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("a rank that saves alone: error %v should name the checkpoint and the missing rank", err)
	}
	err = s.each(func(r *rank) error { return r.load(dir, 1+r.c.Rank()) })
	if err == nil || !strings.Contains(err.Error(), "step-000001") || !strings.Contains(err.Error(), "step-000002") {
		t.Errorf("ranks that load different checkpoints: error %v should name both", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, savingPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestE29StaleRun: a new run in a folder with checkpoints of a longer one keeps what it
// saves.
func TestE29StaleRun(t *testing.T) {
	dir := t.TempDir()
	s := small{world: 2, stage: 1, params: named(10), rule: zero.DefaultAdamW()}
	for _, step := range []int{1000, 10} {
		s.must(t, func(r *rank) error {
			return NewSaver(r.opt, r.c, Options{Dir: dir, Keep: 1}).Save(r.ctx, StepTag(step))
		})
	}
	all, err := List(dir)
	if err != nil || len(all) != 1 || all[0].Tag != StepTag(10) {
		t.Errorf("kept: %s, %v", Tags(all), err)
	}
}
