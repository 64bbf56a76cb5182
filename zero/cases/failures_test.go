package cases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// Section E: ranks that stop. Nobody may wait for ever (DeepSpeed #2993, #801,
// #2223, Lightning #13498, transformers #28270): every rank returns in time with
// the rank, the operation and the cause, and no goroutine stays (TestMain checks).

// The phases of a step in which a rank can stop.
var phases = []string{"data", "forward", "first gradient", "between gradients", "end of backward", "step", "rule", "after the step"}

var errLost = errors.New("lost the disk")

// errLeave makes a rank end its training without an error.
var errLeave = errors.New("no more batches")

// faultyRule is SGD that lets a test in.
type faultyRule struct {
	zero.SGD
	at func()
}

func (r faultyRule) Update(step int, lr float64, w, g []float32, state [][]float32) {
	r.at()
	r.SGD.Update(step, lr, w, g, state)
}

// loop is a program's training loop, which turns a panic into an error. at is
// called in every phase of every step, counted from 1.
func loop(cfg zero.Config, sizes []int, steps int, newContext func(context.Context, int) (context.Context, context.CancelFunc), at func(ctx context.Context, rank, step int, phase string) error) func(comm.Communicator) error {
	return func(c comm.Communicator) (err error) {
		ctx := context.Background()
		if newContext != nil {
			var cancel context.CancelFunc
			ctx, cancel = newContext(ctx, c.Rank())
			defer cancel()
		}
		step := 0
		call := func(phase string) error {
			if at == nil {
				return nil
			}
			return at(ctx, c.Rank(), step, phase)
		}
		rule := faultyRule{at: func() {
			if err := call("rule"); err != nil {
				panic(err)
			}
		}}
		o, err := zero.New(ctx, training{sizes: sizes}.params(), cfg, c, rule)
		if err != nil {
			return err
		}
		defer o.Close()
		defer abortOnFailure(c, &err)
		for step = 1; step <= steps; step++ {
			if err := loopStep(ctx, o, sizes, call); err != nil {
				return err
			}
		}
		return nil
	}
}

// abortOnFailure is deferred: it turns a panic into an error and tells the other
// ranks the cause, before this rank closes anything.
func abortOnFailure(c comm.Communicator, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v", p)
	}
	if errors.Is(*err, errLeave) {
		*err = nil
	}
	if *err != nil {
		c.Abort(*err)
	}
}

func loopStep(ctx context.Context, o *zero.Optimizer, sizes []int, call func(string) error) error {
	for _, phase := range []string{"data", "forward", "first gradient"} {
		if err := call(phase); err != nil {
			return err
		}
	}
	for i := len(sizes) - 1; i >= 0; i-- {
		if err := o.GradReady(ctx, i, make([]float32, sizes[i])); err != nil {
			return err
		}
		if i == len(sizes)/2 {
			if err := call("between gradients"); err != nil {
				return err
			}
		}
	}
	if err := call("end of backward"); err != nil {
		return err
	}
	if err := o.EndBackward(ctx); err != nil {
		return err
	}
	if err := call("step"); err != nil {
		return err
	}
	if _, err := o.Step(ctx, 1); err != nil {
		return err
	}
	return call("after the step")
}

// stageConfigs are the configurations of this section.
func stageConfigs() []zero.Config {
	var all []zero.Config
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			all = append(all, config(func(c *zero.Config) {
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = overlap
				c.ZeroOptimization.ReduceBucketSize = 67
			}))
		}
	}
	return all
}

// TestE30RankFails: rank 1 fails, panics or is cancelled, in any phase.
func TestE30RankFails(t *testing.T) {
	for _, phase := range phases {
		for _, kind := range []string{"error", "panic", "cancel"} {
			t.Run(kind+" in "+phase, func(t *testing.T) {
				for _, cfg := range stageConfigs() {
					synctest.Test(t, func(t *testing.T) { rankFails(t, cfg, phase, kind) })
				}
			})
		}
	}
}

func rankFails(t *testing.T, cfg zero.Config, phase, kind string) {
	cancels := make([]context.CancelCauseFunc, 3)
	newContext := func(ctx context.Context, rank int) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		cancels[rank] = cancel
		return ctx, func() { cancel(nil) }
	}
	start := time.Now()
	_, errs := onRanks(t, 3, gated.Options{}, nil, loop(cfg, f1, 4, newContext, func(_ context.Context, rank, step int, at string) error {
		if rank != 1 || step != 2 || at != phase {
			return nil
		}
		switch kind {
		case "panic":
			panic(errLost)
		case "cancel":
			cancels[1](errLost) // and goes on: the next collective finds it
			return nil
		}
		return errLost
	}), local.WithTimeout(time.Minute))
	if d := time.Since(start); d > 0 { // simulated time: nobody waited for a timeout
		t.Errorf("%+v: took %v", cfg.ZeroOptimization, d)
	}
	for r, err := range errs {
		wantError(t, fmt.Sprintf("%+v: rank %d", cfg.ZeroOptimization, r), err, errLost.Error())
		if r == 1 || err == nil {
			continue
		}
		wantError(t, fmt.Sprintf("%+v: rank %d", cfg.ZeroOptimization, r), err, "rank 1: ")
		if !namesOperation(err) {
			t.Errorf("%+v: rank %d: error %q names no operation", cfg.ZeroOptimization, r, err)
		}
	}
}

// namesOperation reports whether err says which collective suffered.
func namesOperation(err error) bool {
	for k := comm.ReduceScatter; k <= comm.Barrier; k++ {
		if strings.Contains(err.Error(), k.String()) {
			return true
		}
	}
	return false
}

// TestE30UnevenBatches: ranks that run out of batches early end the others at once,
// with the number of the rank that left and what they were doing.
func TestE30UnevenBatches(t *testing.T) {
	for _, batches := range [][]int{{3, 2}, {2, 3}, {4, 4, 8, 4}, {0, 1}} {
		for _, cfg := range stageConfigs() {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, errs := onRanks(t, len(batches), gated.Options{}, nil, loop(cfg, f1, 10, nil, func(_ context.Context, rank, step int, at string) error {
					if at == "data" && step > batches[rank] {
						return errLeave
					}
					return nil
				}), local.WithTimeout(time.Minute))
				fewest := min(batches[0], batches[1])
				for r, err := range errs {
					if batches[r] == fewest {
						if err != nil {
							t.Errorf("%v: rank %d: %v", batches, r, err)
						}
						continue
					}
					wantError(t, fmt.Sprintf("%v: rank %d", batches, r), err, fmt.Sprintf("of step %d", fewest+1), "closed its communicator")
					if err != nil && !slicesContainsRank(err, batches, fewest) {
						t.Errorf("%v: rank %d: error %q names no rank that left", batches, r, err)
					}
				}
				if d := time.Since(start); d > 0 {
					t.Errorf("took %v", d)
				}
			})
		}
	}
}

// slicesContainsRank reports whether err names a rank with the fewest batches.
func slicesContainsRank(err error, batches []int, fewest int) bool {
	for r, n := range batches {
		if n == fewest && strings.Contains(err.Error(), fmt.Sprintf("rank %d: ", r)) {
			return true
		}
	}
	return false
}

// TestE30RankHangs: a rank that is stuck, and neither fails nor leaves, is an error
// on the others after the timeout that names it and the operation it is missing
// from; when it comes back it gets the error too.
func TestE30RankHangs(t *testing.T) {
	for _, tc := range []struct{ phase, operation string }{
		{"data", `"gradient bucket" of step 2, bucket 0`},
		{"between gradients", `"gradient bucket" of step 2, bucket 1`},
		{"step", `"norm block sums" of step 2`},
		{"rule", `"weights" of step 2, bucket 0`},
	} {
		for _, cfg := range stageConfigs() {
			if tc.phase == "rule" && cfg.ZeroOptimization.Stage == 0 || tc.phase == "between gradients" && cfg.ZeroOptimization.OverlapComm {
				continue // no weights travel; which bucket it is depends on timing
			}
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, errs := onRanks(t, 3, gated.Options{}, nil, loop(cfg, f1, 3, nil, func(_ context.Context, rank, step int, at string) error {
					if rank == 1 && step == 2 && at == tc.phase {
						time.Sleep(time.Second)
					}
					return nil
				}), local.WithTimeout(300*time.Millisecond))
				for r, err := range errs {
					who := fmt.Sprintf("stage %d, %s: rank %d", cfg.ZeroOptimization.Stage, tc.phase, r)
					wantError(t, who, err, "waited 300ms for rank 1")
					if tc.phase != "between gradients" {
						wantError(t, who, err, tc.operation)
					}
				}
				if d := time.Since(start); d != time.Second {
					t.Errorf("took %v, want the second that rank 1 was away", d)
				}
			})
		}
	}
}

// TestE30HangsAtStart: a rank that never builds its optimizer.
func TestE30HangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, errs := onRanks(t, 3, gated.Options{}, nil, func(c comm.Communicator) error {
			if c.Rank() == 2 {
				time.Sleep(time.Second)
			}
			return loop(config(nil), f1, 1, nil, nil)(c)
		}, local.WithTimeout(300*time.Millisecond))
		wantErrors(t, errs, `all-gather "layout hash"`, "waited 300ms for rank 2")
	})
}

// TestE30Desynchronised: ranks whose loops do not match never mix their sums. One
// closes a backward twice, so that its norm meets the other's gradients.
func TestE30Desynchronised(t *testing.T) {
	for _, cfg := range stageConfigs() {
		_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
			ctx := context.Background()
			o, err := zero.New(ctx, training{sizes: f1}.params(), cfg, c, zero.SGD{})
			if err != nil {
				return err
			}
			defer o.Close()
			if c.Rank() == 1 { // a collective of the program's own, in the wrong place
				return comm.Do(ctx, c, &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "evaluation", Bucket: -1}})
			}
			for i := len(f1) - 1; i >= 0; i-- {
				if err := o.GradReady(ctx, i, make([]float32, f1[i])); err != nil {
					return err
				}
			}
			if err := o.EndBackward(ctx); err != nil {
				return err
			}
			return o.Drain(ctx)
		})
		wantErrors(t, errs, "different collectives", "rank 0", "rank 1", `barrier "evaluation"`, `"gradient bucket" of step 1, bucket 0`)
	}
}

// TestE30StepOnOneRank: one rank steps while the other has a micro-batch to go.
// Its loop is wrong, and it alone is told; the others do not wait for it.
func TestE30StepOnOneRank(t *testing.T) {
	cfg := config(func(c *zero.Config) { c.GradientAccumulationSteps = 2; c.ZeroOptimization.Stage = 2 })
	_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) (err error) {
		ctx := context.Background()
		o, err := zero.New(ctx, training{sizes: f1}.params(), cfg, c, zero.SGD{})
		if err != nil {
			return err
		}
		defer o.Close()
		defer abortOnFailure(c, &err)
		for range 2 - c.Rank() {
			for i := range f1 {
				if err := o.GradReady(ctx, i, make([]float32, f1[i])); err != nil {
					return err
				}
			}
			if err := o.EndBackward(ctx); err != nil {
				return err
			}
		}
		_, err = o.Step(ctx, 1)
		return err
	})
	wantErrors(t, errs, "step after 1 of 2 backwards", "gradient_accumulation_steps = 2")
	wantError(t, "rank 0", errs[0], "rank 1: ", "reduce-scatter")
}

// TestE30WireFails: the n-th collective of the training fails on one rank, for
// every n: all ranks return its cause.
func TestE30WireFails(t *testing.T) {
	cut := errors.New("the cable is cut")
	for _, cfg := range stageConfigs() {
		total := 0
		for n := 0; n == 0 || n < total; n++ {
			g, errs := onRanks(t, 2, gated.Options{Poison: gradientBucket, Fail: func(e gated.Event) error {
				if e.Rank == 1 && e.N == n {
					return cut
				}
				return nil
			}}, nil, loop(cfg, f1, 2, nil, nil))
			wantErrors(t, errs, cut.Error(), "rank 1: ")
			if t.Failed() {
				t.Fatalf("collective %d: %+v", n, cfg.ZeroOptimization)
			}
			if n == 0 {
				clean, _ := onRanks(t, 2, gated.Options{}, nil, loop(cfg, f1, 2, nil, nil))
				total = len(clean.Log(1))
			} else if l := g.Log(1); len(l) <= n {
				t.Fatalf("collective %d of %d was never started", n, total)
			}
		}
	}
}

// failing is a network that fails on one rank in a chosen way.
type failing struct {
	w    *framework.Param
	mode string
}

func (f failing) Params() []*framework.Param { return []*framework.Param{f.w} }

func (f failing) Loss(t *framework.Tape, s, _, r, _ int) (*framework.Tensor, error) {
	y := t.Linear(t.Input([]int{1, 2}, []float32{1, 2}), f.w.Value, nil)
	if s == 1 && r == 1 {
		switch f.mode {
		case "panic in forward":
			panic("index out of range")
		case "error of the data":
			return nil, errLost
		case "loss that is no scalar":
			return t.Linear(t.Input([]int{2, 2}, []float32{1, 2, 3, 4}), f.w.Value, nil), nil
		}
	}
	return linearLoss(t, y), nil
}

// TestE30EngineFails: the same through the engine and a model.
func TestE30EngineFails(t *testing.T) {
	for mode, cause := range map[string]string{
		"panic in forward":       "index out of range",
		"error of the data":      errLost.Error(),
		"loss that is no scalar": "want a scalar",
	} {
		for _, cfg := range stageConfigs() {
			tr := modelTraining{cfg: cfg, world: 2, steps: 3, build: func() (network, error) {
				return failing{framework.NewParam("w", make([]float32, 2), 1, 2), mode}, nil
			}}
			_, errs := tr.run(t)
			wantErrors(t, errs, cause)
			wantError(t, mode, errs[0], "rank 1: ")
		}
	}
}

// TestE30ClosesEarly: a rank that closes its optimizer in the middle of a backward,
// and says nothing, is named with what it did.
func TestE30ClosesEarly(t *testing.T) {
	cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = 2; c.ZeroOptimization.OverlapComm = true })
	errs := make([]error, 2)
	group := make(chan *gated.Group, 2)
	onRanks(t, 2, gated.Options{Hold: gradientBucket}, func(g *gated.Group) { group <- g; group <- g }, func(c comm.Communicator) error {
		ctx := context.Background()
		o, err := zero.New(ctx, training{sizes: f1}.params(), cfg, c, zero.SGD{})
		if err != nil {
			return err
		}
		for i := range f1 {
			if err := o.GradReady(ctx, i, make([]float32, f1[i])); err != nil {
				return err
			}
		}
		if g := <-group; c.Rank() == 0 {
			errs[0] = errors.Join(o.EndBackward(ctx), o.Drain(ctx))
		} else if _, err := g.Await(ctx, 1, 0); err != nil {
			return err
		}
		return o.Close()
	})
	wantError(t, "rank 0", errs[0], "rank 1: ", `reduce-scatter "gradient bucket" of step 1`, "closed its optimizer")
}

// TestE30RulePanics: a rule that panics on a goroutine of the update, as it works on
// a large shard, is the error of its rank and not the end of the process.
func TestE30RulePanics(t *testing.T) {
	for _, cfg := range stageConfigs() {
		cfg.ZeroOptimization.ReduceBucketSize = 5e8
		_, errs := onRanks(t, 2, gated.Options{}, nil, loop(cfg, []int{100_000, 7}, 3, nil, func(_ context.Context, rank, step int, at string) error {
			if rank == 1 && step == 2 && at == "rule" {
				return errLost
			}
			return nil
		}))
		wantErrors(t, errs, errLost.Error())
		wantError(t, "rank 0", errs[0], "rank 1: ")
	}
}
