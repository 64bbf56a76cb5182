package checkpoint

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"testing"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup is a way to run the training of these tests: 4 micro-batches a step, over
// parameters of odd sizes, an empty one and a frozen one.
type setup struct {
	world, stage, bucket int
	format               string // fp32, bf16 or fp16
	ema                  bool
	edit                 func([]zero.Param) []zero.Param
}

func (s setup) String() string {
	return fmt.Sprintf("W=%d stage %d bucket %d %s", s.world, s.stage, s.bucket, s.format)
}

const microBatches = 4

var sizes = []int{3, 700, 0, 41, 5, 1}

const frozen = 4 // index in sizes

func (s setup) config() zero.Config {
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = microBatches / s.world
	cfg.GradientClipping = 0.7
	cfg.BF16.Enabled, cfg.FP16.Enabled = s.format == "bf16", s.format == "fp16"
	cfg.FP16.InitialScalePower = 10
	cfg.FP16.LossScaleWindow = 3
	cfg.ZeroOptimization.Stage = s.stage
	cfg.ZeroOptimization.ReduceBucketSize = s.bucket
	cfg.ZeroOptimization.OverlapComm = s.bucket%2 == 0
	return cfg
}

func (s setup) rule() zero.Rule {
	if s.ema {
		return zero.EMA{Rule: zero.DefaultAdamW(), Decay: 0.9, Ramp: true}
	}
	return zero.DefaultAdamW()
}

func (s setup) params() []zero.Param {
	params := make([]zero.Param, len(sizes))
	for i, n := range sizes {
		init := make([]float32, n)
		for k := range init {
			init[k] = number(0, i, k)
		}
		params[i] = zero.Param{Name: fmt.Sprintf("layer.%d/weight", i), Shape: []int{n}, Init: init, Frozen: i == frozen}
	}
	if s.edit != nil {
		params = s.edit(params)
	}
	return params
}

// number is a value between -1 and 1 that its keys decide.
func number(keys ...int) float32 {
	h := fnv.New32a()
	fmt.Fprint(h, keys)
	return float32(int32(h.Sum32())) / (1 << 31)
}

// rank is one rank of a training.
type rank struct {
	setup
	ctx context.Context
	c   comm.Communicator
	opt *zero.Optimizer
}

// each runs f on every rank and returns the error of the first that failed.
func (s setup) each(f func(r *rank) error) error {
	return local.Run(context.Background(), s.world, func(ctx context.Context, c comm.Communicator) error {
		opt, err := zero.New(ctx, s.params(), s.config(), c, s.rule())
		if err != nil {
			return err
		}
		defer opt.Close()
		return f(&rank{s, ctx, c, opt})
	})
}

// must is each for a test that expects no error.
func (s setup) must(t *testing.T, f func(r *rank) error) {
	t.Helper()
	if err := s.each(f); err != nil {
		t.Fatalf("%v: %v", s, err)
	}
}

// steps trains from where the optimizer is until it has tried n steps. In fp16 the
// gradient of step 2 overflows.
func (r *rank) steps(n int) error {
	for {
		tried, _ := r.opt.Steps()
		if tried >= n {
			return nil
		}
		for m := range microBatches / r.world {
			if err := r.backward(tried, m*r.world+r.c.Rank()); err != nil {
				return err
			}
		}
		if _, err := r.opt.Step(r.ctx, 0.05); err != nil {
			return err
		}
	}
}

func (r *rank) backward(step, g int) error {
	scale := r.opt.LossScale()
	for i := len(sizes) - 1; i >= 0; i-- {
		if i == frozen {
			continue
		}
		grad := make([]float32, sizes[i])
		for k := range grad {
			grad[k] = float32(scale) * number(step, g, i, k)
			if r.format == "fp16" && step == 1 && g == 2 {
				grad[k] = float32(math.Inf(1))
			}
		}
		if err := r.opt.GradReady(r.ctx, i, grad); err != nil {
			return err
		}
	}
	return r.opt.EndBackward(r.ctx)
}

// fingerprint is the whole state of the training as bits: weights, states, compute
// copies and counters. All ranks return the same.
func (r *rank) fingerprint() (string, error) {
	h := fnv.New64a()
	add := func(x []float32, err error) error {
		for _, v := range x {
			fmt.Fprintf(h, "%08x", math.Float32bits(v))
		}
		return err
	}
	for i, p := range r.opt.Params() {
		if err := add(r.opt.FullParam(r.ctx, p.Name)); err != nil {
			return "", err
		}
		for _, key := range r.opt.StateNames(i) {
			if err := add(r.opt.FullState(r.ctx, p.Name, key)); err != nil {
				return "", err
			}
		}
		v := r.opt.Value(i)
		wide := make([]float32, v.Len())
		for k := range wide {
			wide[k] = float32(v.At(k))
		}
		if err := add(wide, nil); err != nil {
			return "", err
		}
	}
	p := r.opt.Progress()
	text := fmt.Sprintf("%016x, %d of %d steps applied, %d skipped in a row", h.Sum64(), p.Applied, p.Tried, p.SkippedInARow)
	if p.Scaler != nil {
		text += fmt.Sprintf(", %+v", *p.Scaler)
	}
	return text, nil
}

// outcome trains without stopping and returns the fingerprint.
func (s setup) outcome(t *testing.T, steps int) (print string) {
	t.Helper()
	s.must(t, func(r *rank) error {
		if err := r.steps(steps); err != nil {
			return err
		}
		p, err := r.fingerprint()
		if r.c.Rank() == 0 {
			print = p
		}
		return err
	})
	return print
}

// save trains until a step and saves there.
func (s setup) save(t *testing.T, dir string, step int, attached ...Attachment) {
	t.Helper()
	s.must(t, func(r *rank) error {
		if err := r.steps(step); err != nil {
			return err
		}
		own := attached
		if r.c.Rank() != 0 {
			own = nil
		}
		return NewSaver(r.opt, r.c, Options{Dir: dir}).Save(r.ctx, StepTag(step), own...)
	})
}

// resumed opens what find finds, goes on to a step and returns the fingerprint.
func (s setup) resumed(t *testing.T, steps int, find func() (*Folder, error)) (print string) {
	t.Helper()
	f, err := find()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.must(t, func(r *rank) error {
		if err := f.Load(r.ctx, r.opt, r.c); err != nil {
			return err
		}
		if err := r.steps(steps); err != nil {
			return err
		}
		p, err := r.fingerprint()
		if r.c.Rank() == 0 {
			print = p
		}
		return err
	})
	return print
}

func bits(b dtype.Buffer) string { return fmt.Sprint(b.DType, b.F32, b.U16) }
