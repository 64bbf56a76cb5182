package zero

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sgd is plain gradient descent.
type sgd struct{}

func (sgd) String() string   { return "SGD" }
func (sgd) States() []string { return nil }
func (sgd) Update(_ int, lr float64, w, g []float32, _ [][]float32) {
	for i := range w {
		w[i] -= float32(float32(lr) * g[i])
	}
}

// trial is one training of a list of parameters, on goroutine ranks.
type trial struct {
	cfg    Config
	world  int
	sizes  []int
	frozen map[int]bool
	rule   Rule
	groups []Group
	group  func(p int) int    // of parameter p; nil for all 0
	dtype  func(p int) string // of parameter p; nil for the model's
	steps  int
	lr     float64
	given  bool // the caller brings the Values
	init   func(i int) float32
	// grad is the gradient of element i of the flat space of all parameters,
	// in step s (from 0), micro-step m, on rank r.
	grad func(s, m, r, i int) float32
	// order lists the parameters that get a gradient, in ready order; nil for
	// all in reverse registration order.
	order func(s, m, r int) []int
	// hooks is the number of goroutines that call GradReady; 0 for the
	// training's own.
	hooks int
	// noSync says which backwards run inside NoSync; nil for none.
	noSync func(s, m int) bool
	wrap   func(comm.Communicator) comm.Communicator
	parts  Parts
	opts   []local.Option
}

// outcome is what a trial leaves.
type outcome struct {
	results []StepResult // of rank 0; the others' are equal
	master  []float32    // flat, all trainable parameters
	states  [][]float32
	values  [][]float32 // the compute copy, after each step, widened
	peak    Memory      // of rank 0
	now     Memory
	traffic []Traffic // by rank
	plan    *Plan
}

// fataler is what testing and rapid have in common.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// ranks runs f for every rank of a new group and returns the ranks' errors.
func ranks(t fataler, world int, f func(comm.Communicator) error, opts ...local.Option) []error {
	t.Helper()
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range local.New(world, opts...) {
		wg.Go(func() {
			defer c.Close()
			errs[r] = f(c)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("ranks did not return within 20 s")
	}
	return errs
}

func (tr trial) params() []Param {
	params := make([]Param, len(tr.sizes))
	at := 0
	for i, n := range tr.sizes {
		p := Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}, Frozen: tr.frozen[i], Init: make([]float32, n)}
		if tr.init != nil {
			for j := range p.Init {
				p.Init[j] = tr.init(at + j)
			}
		}
		if tr.group != nil {
			p.Group = tr.group(i)
		}
		if tr.dtype != nil {
			p.DType = tr.dtype(i)
		}
		if tr.given {
			p.Value = dtype.Make(tr.format(i), n)
		}
		at += n
		params[i] = p
	}
	return params
}

// format returns the format of parameter i.
func (tr trial) format(i int) dtype.DType {
	if tr.dtype != nil && tr.dtype(i) != "" {
		d, err := dtype.Parse(tr.dtype(i))
		if err != nil {
			panic(err)
		}
		return d
	}
	return tr.cfg.Policy().Param
}

// run trains and returns the ranks' errors, by rank, and what they leave.
func (tr trial) run(t fataler) (outcome, []error) {
	t.Helper()
	if tr.rule == nil {
		tr.rule = sgd{}
	}
	outs := make([]outcome, tr.world)
	opts := make([]*Optimizer, tr.world)
	held := make([]*holding, tr.world)
	errs := ranks(t, tr.world, func(c comm.Communicator) error {
		if tr.wrap != nil {
			c = tr.wrap(c)
		}
		o, err := tr.parts.New(context.Background(), tr.params(), tr.cfg, c, tr.rule, tr.groups...)
		if err != nil {
			return err
		}
		defer o.Close()
		opts[c.Rank()] = o
		defer func() {
			held[c.Rank()] = holdingOf(o)
			out := &outs[c.Rank()]
			out.now, out.peak = o.Memory()
		}()
		return tr.train(o, c, &outs[c.Rank()])
	}, tr.opts...)
	if opts[0] == nil {
		return outcome{}, errs
	}
	out := outs[0]
	out.plan = opts[0].Plan()
	for _, o := range opts {
		if o != nil {
			out.traffic = append(out.traffic, o.Traffic())
		}
	}
	out.master, out.states = assemble(out.plan, held)
	for r, other := range outs {
		if errs[r] == nil && errs[0] == nil {
			tr.same(t, r, out, other)
		}
	}
	return out, errs
}

// must is run for trials that may not fail.
func (tr trial) must(t fataler) outcome {
	t.Helper()
	out, errs := tr.run(t)
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\nconfiguration %+v", err, tr.cfg)
	}
	return out
}

func (tr trial) train(o *Optimizer, c comm.Communicator, out *outcome) error {
	ctx := context.Background()
	for s := range tr.steps {
		for m := range tr.cfg.GradientAccumulationSteps {
			backward := func() error {
				if err := tr.backward(o, s, m, c.Rank()); err != nil {
					return err
				}
				return o.EndBackward(ctx)
			}
			if tr.noSync != nil && tr.noSync(s, m) {
				if err := o.NoSync(backward); err != nil {
					return err
				}
			} else if err := backward(); err != nil {
				return err
			}
		}
		r, err := o.Step(ctx, tr.lr)
		if r.Step > 0 {
			out.results = append(out.results, r)
		}
		if err != nil {
			return err
		}
		out.values = append(out.values, widened(o))
	}
	return nil
}

func (tr trial) backward(o *Optimizer, s, m, r int) error {
	ctx := context.Background()
	var order []int
	if tr.order != nil {
		order = tr.order(s, m, r)
	} else {
		for i := len(tr.sizes) - 1; i >= 0; i-- {
			order = append(order, i)
		}
	}
	offset := make([]int, len(tr.sizes)+1)
	for i, n := range tr.sizes {
		offset[i+1] = offset[i] + n
	}
	give := func(i int) error {
		if tr.frozen[i] {
			return nil
		}
		g := make([]float32, tr.sizes[i])
		for j := range g {
			g[j] = tr.grad(s, m, r, offset[i]+j)
		}
		defer func() { // the optimizer must have read it
			for j := range g {
				g[j] = float32(math.NaN())
			}
		}()
		return o.GradReady(ctx, i, g)
	}
	if tr.hooks == 0 {
		for _, i := range order {
			if err := give(i); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, tr.hooks)
	var wg sync.WaitGroup
	for h := range tr.hooks {
		wg.Go(func() {
			for k := h; k < len(order); k += tr.hooks {
				if errs[h] = give(order[k]); errs[h] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// same compares what rank r saw with what rank 0 saw, bit for bit.
func (tr trial) same(t fataler, r int, a, b outcome) {
	t.Helper()
	for s := range a.results {
		x, y := a.results[s], b.results[s]
		if math.Float64bits(x.Norm) != math.Float64bits(y.Norm) || x.Applied != y.Applied || x.NextLossScale != y.NextLossScale {
			t.Fatalf("step %d: rank 0 has %+v, rank %d %+v", s, x, r, y)
		}
		if !sameBits(a.values[s], b.values[s]) {
			t.Fatalf("step %d: ranks 0 and %d have different weights", s, r)
		}
	}
}

// widened returns all trainable Values as float32.
func widened(o *Optimizer) []float32 {
	var all []float32
	for i := range o.params {
		if v := o.Value(i); !o.params[i].Frozen {
			for j := range v.Len() {
				all = append(all, float32(v.At(j)))
			}
		}
	}
	return all
}

// holding is what one rank's shard holds.
type holding struct {
	region Region
	master []float32
	states [][]float32 // of the rule, over the region
}

// holdingOf copies o's shard.
func holdingOf(o *Optimizer) *holding {
	h := &holding{region: o.shard.region, master: slices.Clone(o.shard.master)}
	for _, u := range o.shard.updates {
		for len(h.states) < len(u.state) {
			h.states = append(h.states, make([]float32, h.region.Len()))
		}
		for k, x := range u.state {
			copy(h.states[k][u.Lo:u.Hi], x)
		}
	}
	return h
}

// assemble joins the ranks' shards, in the order of the element space.
func assemble(p *Plan, held []*holding) (master []float32, states [][]float32) {
	master = make([]float32, p.Elements)
	for _, h := range held {
		if h == nil {
			continue
		}
		for k := range h.states {
			if k == len(states) {
				states = append(states, make([]float32, p.Elements))
			}
		}
		h.region.each(Interval{0, h.region.Len()}, func(iv Interval, at int) {
			copy(master[iv.Lo:iv.Hi], h.master[at:])
			for k := range h.states {
				copy(states[k][iv.Lo:iv.Hi], h.states[k][at:])
			}
		})
	}
	return master, states
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// sameOutcome compares two trials bit for bit.
func sameOutcome(a, b outcome) error {
	if len(a.results) != len(b.results) {
		return fmt.Errorf("%d and %d steps", len(a.results), len(b.results))
	}
	for s := range a.results {
		if x, y := a.results[s].Norm, b.results[s].Norm; math.Float64bits(x) != math.Float64bits(y) {
			return fmt.Errorf("step %d: norms %v and %v", s+1, x, y)
		}
		if !sameBits(a.values[s], b.values[s]) {
			return fmt.Errorf("step %d: weights differ", s+1)
		}
	}
	if !sameBits(a.master, b.master) {
		return errors.New("master weights differ")
	}
	for k := range a.states {
		if !sameBits(a.states[k], b.states[k]) {
			return fmt.Errorf("states %d differ", k)
		}
	}
	return nil
}

// config returns a configuration for tests: fp32, no clipping.
func config(change func(*Config)) Config {
	c := DefaultConfig()
	c.GradientClipping = 0
	if change != nil {
		change(&c)
	}
	return c
}

// Fixture F1: sizes with an empty, a prime-like large and a tiny parameter.
var fixture = []int{7, 0, 1001, 64, 3, 130}

const fixtureLen = 1205

// exactGrad gives small whole numbers, so that every sum, in any format and
// order, and every mean is exact. World 3 multiplies by 3, which makes its means
// exact too.
func exactGrad(world int) func(s, m, r, i int) float32 {
	f := 1
	if world == 3 {
		f = 3
	}
	return func(_, m, r, i int) float32 { return float32(f * ((7*i+3*r+5*m)%17 - 8)) }
}

// shuffled returns parameters in an order that differs by seed, step, micro-step
// and rank.
func shuffled(n int, seed uint64) func(s, m, r int) []int {
	return func(s, m, r int) []int {
		return rand.New(rand.NewPCG(seed, uint64(s<<20|m<<10|r))).Perm(n)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not contain %q", err, p)
		}
	}
}
