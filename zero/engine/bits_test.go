package engine_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// knobs is a way to run one and the same training.
type knobs struct {
	world   int
	stage   int
	bucket  int
	overlap bool
	mode    framework.Mode
	segs    int
	dtype   string // bf16, fp16 or fp32
	more    string // switches another knob, see switches
}

// switches are the knobs that are on or off.
var switches = map[string]func(*zero.Config){
	"":                             func(*zero.Config) {},
	"without reduce_scatter":       func(c *zero.Config) { c.ZeroOptimization.ReduceScatter = false },
	"without contiguous_gradients": func(c *zero.Config) { c.ZeroOptimization.ContiguousGradients = false },
	"without use_multi_rank_bucket_allreduce": func(c *zero.Config) {
		c.ZeroOptimization.UseMultiRankBucketAllreduce = false
	},
	"round_robin_gradients": func(c *zero.Config) { c.ZeroOptimization.RoundRobinGradients = true },
}

func (k knobs) String() string {
	return fmt.Sprintf("world %d, stage %d, bucket %d, overlap %v, checkpointing %v/%d, %s %s", k.world, k.stage, k.bucket, k.overlap, k.mode, k.segs, k.dtype, k.more)
}

// trace is all that a training shows: equal traces are equal trainings.
type trace struct {
	Losses, Norms []uint64 // bits of the float64 of every step
	Weights       uint64   // hash of the compute copy at the end
}

const (
	microBatches = 4 // of one optimizer step, whatever the world size
	microBatch   = 1
	imageSide    = 8
)

// run trains the MNIST network on random pictures of 8x8 and returns the trace,
// which must be the same on every rank.
func (k knobs) run(t *testing.T, steps int) trace {
	t.Helper()
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = microBatches / k.world
	cfg.BF16.Enabled = k.dtype == "bf16"
	cfg.FP16.Enabled = k.dtype == "fp16"
	cfg.GradientClipping = 0.5 // some steps are clipped, some are not
	cfg.ZeroOptimization.Stage = k.stage
	cfg.ZeroOptimization.ReduceBucketSize = k.bucket
	cfg.ZeroOptimization.AllgatherBucketSize = k.bucket
	cfg.ZeroOptimization.OverlapComm = k.overlap
	switches[k.more](&cfg)

	comms := local.New(k.world)
	traces, errs := make([]trace, k.world), make([]error, k.world)
	var wg sync.WaitGroup
	for r := range comms {
		wg.Go(func() {
			if traces[r], errs[r] = k.rank(cfg, comms[r], steps); errs[r] != nil {
				comms[r].Abort(errs[r])
			}
			if err := comms[r].Close(); err != nil && errs[r] == nil {
				errs[r] = err
			}
		})
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("%v: rank %d: %v", k, r, err)
		}
		if d := traces[r].differs(traces[0]); d != "" {
			t.Fatalf("%v: rank %d and rank 0 differ: %s", k, r, d)
		}
	}
	return traces[0]
}

func (k knobs) rank(cfg zero.Config, c comm.Communicator, steps int) (tr trace, err error) {
	net := mnistNet()
	net.Dropout = 0.1
	model, err := unet.New(net, 3)
	if err != nil {
		return tr, err
	}
	if err := model.SetCheckpointing(k.mode, k.segs); err != nil {
		return tr, err
	}
	ctx := context.Background()
	schedule := zero.WarmupLR{Warmup: zero.Warmup{NumSteps: 5, Type: zero.WarmupLinear}, MaxLR: 2e-3}
	e, err := engine.New(ctx, model, cfg, schedule, zero.DefaultAdamW(), c)
	if err != nil {
		return tr, err
	}
	defer e.Close()
	for step := range steps {
		for m := range cfg.GradientAccumulationSteps {
			loss, err := forward(e.Tape(), model, step, (m*c.Size()+c.Rank())*microBatch)
			if err != nil {
				return tr, err
			}
			if err := e.Backward(ctx, loss); err != nil {
				return tr, err
			}
		}
		r, err := e.Step(ctx)
		if err != nil {
			return tr, err
		}
		tr.Losses = append(tr.Losses, math.Float64bits(r.Loss))
		tr.Norms = append(tr.Norms, math.Float64bits(r.Norm))
	}
	h := fnv.New64a()
	for _, p := range model.Params() {
		fmt.Fprint(h, p.Value.Float32s())
	}
	tr.Weights = h.Sum64()
	return tr, nil
}

// forward is the loss of the samples from first on: everything random is keyed
// by the sample's number.
func forward(t *framework.Tape, model *unet.UNet2DModel, step, first int) (*framework.Tensor, error) {
	const size = imageSide * imageSide
	x, target := make([]float32, microBatch*size), make([]float32, microBatch*size)
	timesteps, samples := make([]int, microBatch), make([]int, microBatch)
	for i := range microBatch {
		samples[i] = step*microBatches*microBatch + first + i
		s := framework.NewStream(9, step, samples[i], "picture")
		s.FillNorm(x[i*size : (i+1)*size])
		s.FillNorm(target[i*size : (i+1)*size])
		timesteps[i] = s.Intn(1000)
	}
	t.SetSample(framework.Sample{Seed: 5, Step: step, Samples: samples, Train: true})
	shape := []int{microBatch, 1, imageSide, imageSide}
	pred, err := model.Forward(t, t.Input(shape, x), timesteps)
	if err != nil {
		return nil, err
	}
	return t.MSELoss(pred, t.Constant(shape, target)), nil
}

// differs names the first difference, "" when there is none.
func (a trace) differs(b trace) string {
	for i := range a.Losses {
		la, lb := math.Float64frombits(a.Losses[i]), math.Float64frombits(b.Losses[i])
		if a.Losses[i] != b.Losses[i] {
			return fmt.Sprintf("loss of step %d: %v and %v", i+1, la, lb)
		}
		if a.Norms[i] != b.Norms[i] {
			return fmt.Sprintf("gradient norm of step %d: %v and %v", i+1, math.Float64frombits(a.Norms[i]), math.Float64frombits(b.Norms[i]))
		}
	}
	if a.Weights != b.Weights {
		return "weights after the last step"
	}
	return ""
}

// TestNoKnobChangesABit is the promise: 30 steps of one training, run in every
// way, give the same losses, gradient norms and weights.
func TestNoKnobChangesABit(t *testing.T) {
	steps := 30
	if testing.Short() {
		steps = 3
	}
	base := knobs{world: 2, stage: 2, bucket: 27000, dtype: "bf16"}
	want := base.run(t, steps)
	compare := func(k knobs) {
		if d := k.run(t, steps).differs(want); d != "" {
			t.Errorf("%v: %s (second: %v)", k, d, base)
		}
	}
	runs := 0
	for _, bucket := range []int{1000, 27000, 1350000, 5e8} {
		for stage := range 3 {
			for _, overlap := range []bool{false, true} {
				for _, mode := range []framework.Mode{framework.ModeNone, framework.ModeReentrant, framework.ModeNonReentrant} {
					compare(knobs{world: 2, stage: stage, bucket: bucket, overlap: overlap, mode: mode, dtype: "bf16"})
					runs++
				}
			}
		}
	}
	for _, world := range []int{1, 2, 4} {
		for stage := range 3 {
			compare(knobs{world: world, stage: stage, bucket: 27000, overlap: true, mode: framework.ModeReentrant, segs: 3, dtype: "bf16"})
			runs++
		}
	}
	for more := range switches {
		for stage := 1; stage <= 2 && more != ""; stage++ {
			compare(knobs{world: 4, stage: stage, bucket: 27000, overlap: stage == 2, dtype: "bf16", more: more})
			runs++
		}
	}
	t.Logf("%d runs of %d steps: %d losses and norms and %d sets of weights are the same bits", runs, steps, 2*runs*steps, runs)
}

var update = flag.Bool("update", false, "write the golden losses anew (only with a change that is meant to be numeric)")

// TestGoldenLosses holds the losses of the first steps to stored bits, so that a
// change that is not meant to be numeric cannot be. Kernels with other
// arithmetic (plain Go instead of assembly) have losses of their own.
func TestGoldenLosses(t *testing.T) {
	path := filepath.Join("testdata", "golden_losses.json")
	golden := map[string]map[string]trace{}
	if raw, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(raw, &golden); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]trace{}
	for _, dtype := range []string{"fp32", "bf16", "fp16"} {
		got[dtype] = knobs{world: 2, stage: 2, bucket: 27000, overlap: true, dtype: dtype}.run(t, 10)
	}
	if *update {
		golden[kernel.Arithmetic()] = got
		raw, err := json.MarshalIndent(golden, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(raw, '\n'), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, ok := golden[kernel.Arithmetic()]
	if !ok {
		t.Fatalf("no golden losses for %q kernels: run go test ./zero/engine -run Golden -update on such a machine", kernel.Arithmetic())
	}
	for dtype, tr := range got {
		if d := tr.differs(want[dtype]); d != "" {
			t.Errorf("%s: %s (second: golden)", dtype, d)
		}
	}
}
