package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// f1 is the fixture of the cases: sizes with an empty, a tiny and a large odd
// parameter.
var f1 = []int{7, 0, 1001, 64, 3, 130}

const f1Len = 1205

// exact is the fixture's gradient, on which every sum in any order is exact.
func exact(_, m, r, i int) float32 { return float32((7*i+3*r+5*m)%17 - 8) }

// noise is a gradient that depends on nothing but the numbers of its element and its
// micro-batch, over several magnitudes.
func noise(s, m, r, i int) float32 {
	rng := rand.New(rand.NewPCG(uint64(s*100+m*10+r), uint64(i)))
	return float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(12)-10)))
}

// training is a training of F1 on goroutine ranks: SGD of rate 1 from zero.
type training struct {
	faults []string
	seed   uint64
	cfg    zero.Config
	world  int
	steps  int
	sizes  []int // f1
	grad   func(s, m, r, i int) float32
	order  func(r int) []int // in which gradients become ready; nil: reverse
	groups []zero.Group
	group  func(p int) int
	rule   zero.Rule
	probe  zero.Probe
}

// outcome is what a training leaves, by rank.
type outcome struct {
	results [][]zero.StepResult
	weights [][]float32
	plan    *zero.Plan
}

func config(change func(*zero.Config)) zero.Config {
	c := zero.DefaultConfig()
	c.GradientClipping = 0
	if change != nil {
		change(&c)
	}
	return c
}

func (tr training) run(t testing.TB) (outcome, error) {
	t.Helper()
	lab, err := fault.New(tr.faults, tr.seed)
	if err != nil {
		t.Fatal(err)
	}
	if tr.sizes == nil {
		tr.sizes = f1
	}
	if tr.rule == nil {
		tr.rule = zero.SGD{}
	}
	tr.steps = max(1, tr.steps)
	out := outcome{results: make([][]zero.StepResult, tr.world), weights: make([][]float32, tr.world)}
	var mu sync.Mutex
	err = local.Run(context.Background(), tr.world, func(ctx context.Context, c comm.Communicator) error {
		part := lab.Rank()
		part.Parts.Probe = tr.probe
		o, err := part.Parts.New(ctx, tr.params(), tr.cfg, c, part.Rule(tr.rule), tr.groups...)
		if err != nil {
			return err
		}
		defer o.Close()
		results, err := tr.train(ctx, o, c.Rank())
		var weights []float32
		for i := range tr.sizes {
			for j := range o.Value(i).Len() {
				weights = append(weights, float32(o.Value(i).At(j)))
			}
		}
		mu.Lock()
		defer mu.Unlock()
		out.results[c.Rank()], out.weights[c.Rank()], out.plan = results, weights, o.Plan()
		return err
	}, local.WithTimeout(5*time.Second))
	return out, err
}

func (tr training) must(t testing.TB) outcome {
	t.Helper()
	out, err := tr.run(t)
	if err != nil {
		t.Fatalf("faults %v: %v", tr.faults, err)
	}
	return out
}

func (tr training) params() []zero.Param {
	params := make([]zero.Param, len(tr.sizes))
	for i, n := range tr.sizes {
		params[i] = zero.Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}, Init: make([]float32, n)}
		if tr.group != nil {
			params[i].Group = tr.group(i)
		}
	}
	return params
}

func (tr training) train(ctx context.Context, o *zero.Optimizer, rank int) (results []zero.StepResult, err error) {
	for s := range tr.steps {
		for m := range tr.cfg.GradientAccumulationSteps {
			if err := tr.backward(ctx, o, s, m, rank); err != nil {
				return results, err
			}
			if err := o.EndBackward(ctx); err != nil {
				return results, err
			}
		}
		r, err := o.Step(ctx, 1)
		results = append(results, r)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

func (tr training) backward(ctx context.Context, o *zero.Optimizer, s, m, rank int) error {
	order := []int{5, 4, 3, 2, 1, 0}[max(0, 6-len(tr.sizes)):]
	if tr.order != nil {
		order = tr.order(rank)
	}
	var errs []error
	for _, i := range order {
		lo := 0
		for _, n := range tr.sizes[:i] {
			lo += n
		}
		g := make([]float32, tr.sizes[i])
		for j := range g {
			g[j] = tr.grad(s, m, rank, lo+j) * float32(o.LossScale())
		}
		errs = append(errs, o.GradReady(ctx, i, g))
	}
	return errors.Join(errs...)
}

// right is the mean gradient of step s, in float64.
func (tr training) right(s int) []float64 {
	mean := make([]float64, f1Len)
	a := tr.cfg.GradientAccumulationSteps
	for i := range mean {
		for m := range a {
			for r := range tr.world {
				mean[i] += float64(tr.grad(s, m, r, i))
			}
		}
		mean[i] /= float64(a * tr.world)
	}
	return mean
}

// wrong lists the elements whose weight on a rank, after one step, is not minus the
// mean gradient.
func (tr training) wrong(out outcome, rank int) []int {
	var all []int
	for i, g := range tr.right(0) {
		if float64(out.weights[rank][i]) != -g {
			all = append(all, i)
		}
	}
	return all
}

// sameBits returns where two trainings differ first, "" for nowhere.
func sameBits(a, b outcome) string {
	for r := range a.weights {
		for s := range a.results[r] {
			if x, y := a.results[r][s], b.results[r][s]; math.Float64bits(x.Norm) != math.Float64bits(y.Norm) || x.Applied != y.Applied {
				return fmt.Sprintf("rank %d, step %d: %+v and %+v", r, s+1, x, y)
			}
		}
		for i := range a.weights[r] {
			if math.Float32bits(a.weights[r][i]) != math.Float32bits(b.weights[r][i]) {
				return fmt.Sprintf("rank %d: weight %d is %v and %v", r, i, a.weights[r][i], b.weights[r][i])
			}
		}
	}
	return ""
}

// clean runs the same training without faults, which must be right.
func (tr training) clean(t *testing.T) outcome {
	t.Helper()
	tr.faults = nil
	out := tr.must(t)
	for r := range tr.world {
		if bad := tr.wrong(out, r); len(bad) > 0 && !slices.ContainsFunc(tr.right(0), func(v float64) bool { return v-v != 0 }) {
			t.Fatalf("the correct engine has %d wrong elements on rank %d, the first %d: %+v", len(bad), r, bad[0], tr.cfg)
		}
	}
	return out
}
