package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// training is a run of PyTorch and diffusers, stored by testdata/unet/make.py.
type training struct {
	Optimizer struct {
		LR          float64 `json:"lr"`
		Beta1       float64 `json:"beta1"`
		Beta2       float64 `json:"beta2"`
		Eps         float64 `json:"eps"`
		WeightDecay float64 `json:"weight_decay"`
		MaxGradNorm float64 `json:"max_grad_norm"`
	} `json:"optimizer"`
	Runs map[string]struct {
		Losses    []float64 `json:"losses"`
		GradNorms []float64 `json:"grad_norms"`
		FinalLoss float64   `json:"final_loss"`
	} `json:"runs"`
}

// TestTenStepsLikePyTorch trains each stored network with ZeRO-2 on PyTorch's
// batches and compares every loss and gradient norm with PyTorch's AdamW.
func TestTenStepsLikePyTorch(t *testing.T) {
	for _, name := range []string{"attention", "cifar_style", "scale_shift", "odd_size"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "..", "testdata", "unet", name)
			var want training
			raw, err := os.ReadFile(filepath.Join(dir, "training.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			run := want.Runs["float64"]
			if len(run.Losses) != 10 || len(run.GradNorms) != 10 {
				t.Fatalf("%d losses and %d norms are stored, want 10", len(run.Losses), len(run.GradNorms))
			}
			r := newReplay(t, dir, want)
			for step := range run.Losses {
				got := r.step(t, step)
				close3(t, "loss", step, got.Loss, run.Losses[step])
				close3(t, "gradient norm", step, got.Norm, run.GradNorms[step])
			}
			close3(t, "loss on the reference batch after ten steps", 10, r.step(t, 10).Loss, run.FinalLoss)
		})
	}
}

func close3(t *testing.T, what string, step int, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-3*math.Abs(want) {
		t.Errorf("step %d: %s %.7g, PyTorch has %.7g", step, what, got, want)
	}
}

// replay is a one-rank training on stored batches.
type replay struct {
	model     *unet.UNet2DModel
	engine    *engine.Engine
	shape     []int // of one batch
	out       []int
	sample    []float32
	target    []float32
	timesteps []int64
}

func newReplay(t *testing.T, dir string, want training) *replay {
	t.Helper()
	model, err := unet.LoadDiffusers(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(filepath.Join(dir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &replay{model: model, shape: f.Shape("train.sample")[1:], out: f.Shape("train.target")[1:]}
	// The ten batches of the training, then the reference batch.
	for _, prefix := range []string{"train.", ""} {
		sample, err1 := f.Float32(prefix + "sample")
		target, err2 := f.Float32(prefix + "target")
		timesteps, err3 := f.Int64(prefix + "timesteps")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		r.sample, r.target, r.timesteps = append(r.sample, sample...), append(r.target, target...), append(r.timesteps, timesteps...)
	}
	cfg := zero.DefaultConfig()
	cfg.GradientClipping = want.Optimizer.MaxGradNorm
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	cfg.ZeroOptimization.ReduceBucketSize = 1000
	o := want.Optimizer
	rule := zero.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}
	c := local.New(1)[0]
	r.engine, err = engine.New(context.Background(), model, cfg, zero.Constant{Rate: o.LR}, rule, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.engine.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *replay) step(t *testing.T, i int) engine.Result {
	t.Helper()
	in, out, b := product(r.shape), product(r.out), r.shape[0]
	timesteps := make([]int, b)
	for k := range timesteps {
		timesteps[k] = int(r.timesteps[i*b+k])
	}
	tape, ctx := r.engine.Tape(), context.Background()
	pred, err := r.model.Forward(tape, tape.Input(r.shape, r.sample[i*in:(i+1)*in]), timesteps)
	if err != nil {
		t.Fatal(err)
	}
	loss := tape.MSELoss(pred, tape.Constant(r.out, r.target[i*out:(i+1)*out]))
	if err := r.engine.Backward(ctx, loss); err != nil {
		t.Fatal(err)
	}
	res, err := r.engine.Step(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
