package cases

import (
	"context"
	"errors"
	"math"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
	"github.com/zerogap/zerogap/zero/engine"
)

// network is a model with a loss for every micro-batch.
type network interface {
	Params() []*framework.Param
	// Loss records the loss of micro-step m of step s (from 0) on rank r of world.
	Loss(t *framework.Tape, s, m, r, world int) (*framework.Tensor, error)
}

// modelTraining trains a network through the engine, on goroutine ranks.
type modelTraining struct {
	cfg      zero.Config
	world    int
	steps    int // 1
	build    func() (network, error)
	schedule zero.Schedule // rate 1
	rule     zero.Rule     // plain SGD
	gates    gated.Options
}

// modelOutcome is what it leaves.
type modelOutcome struct {
	results       []engine.Result
	losses, norms []uint64 // bits
	weights       map[string][]float32
	gates         *gated.Group
}

func (tr modelTraining) run(t testingT) (modelOutcome, []error) {
	t.Helper()
	if tr.schedule == nil {
		tr.schedule = zero.Constant{Rate: 1}
	}
	if tr.rule == nil {
		tr.rule = zero.SGD{}
	}
	tr.steps = max(1, tr.steps)
	outs := make([]modelOutcome, tr.world)
	g, errs := onRanks(t, tr.world, tr.gates, nil, func(c comm.Communicator) error {
		return tr.rank(c, &outs[c.Rank()])
	})
	if errors.Join(errs...) == nil {
		for r, o := range outs {
			if d := outs[0].differs(o); d != "" {
				t.Fatalf("ranks 0 and %d differ: %s", r, d)
			}
		}
	}
	outs[0].gates = g
	return outs[0], errs
}

func (tr modelTraining) must(t testingT) modelOutcome {
	t.Helper()
	out, errs := tr.run(t)
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\n%+v", err, tr.cfg)
	}
	return out
}

func (tr modelTraining) rank(c comm.Communicator, out *modelOutcome) (err error) {
	ctx := context.Background()
	net, err := tr.build()
	if err != nil {
		return err
	}
	e, err := engine.New(ctx, net, tr.cfg, tr.schedule, tr.rule, c)
	if err != nil {
		return err
	}
	defer e.Close()
	defer abortOnFailure(c, &err)
	for s := range tr.steps {
		for m := range tr.cfg.GradientAccumulationSteps {
			loss, err := net.Loss(e.Tape(), s, m, c.Rank(), c.Size())
			if err != nil {
				return err
			}
			if err := e.Backward(ctx, loss); err != nil {
				return err
			}
		}
		r, err := e.Step(ctx)
		if err != nil {
			return err
		}
		out.results = append(out.results, r)
		out.losses = append(out.losses, math.Float64bits(r.Loss))
		out.norms = append(out.norms, math.Float64bits(r.Norm))
	}
	out.weights = map[string][]float32{}
	for _, p := range net.Params() {
		out.weights[p.Name] = p.Value.Float32s()
	}
	return nil
}

// differs names the first difference of two trainings, "" when they are the same
// bits.
func (a modelOutcome) differs(b modelOutcome) string {
	for s := range a.losses {
		switch {
		case len(b.losses) != len(a.losses):
			return "number of steps"
		case a.losses[s] != b.losses[s]:
			return "losses"
		case a.norms[s] != b.norms[s]:
			return "norms"
		}
	}
	for name, w := range a.weights {
		if firstDifference(w, b.weights[name]) >= 0 {
			return "weights of " + name
		}
	}
	return ""
}

// linearLoss is a loss whose gradient to y, of one element, is exactly 1 wherever
// y is: the square of a distance of one half.
func linearLoss(t *framework.Tape, y *framework.Tensor) *framework.Tensor {
	return t.MSELoss(y, t.Constant([]int{1, 1}, []float32{float32(y.Item()) - 0.5}))
}

// tinyUNet trains a UNet of two levels, with attention, skip connections and a
// time embedding that all blocks share, on random pictures.
type tinyUNet struct {
	cfg      zero.Config
	world    int
	steps    int
	mode     framework.Mode
	segments int
}

func (u tinyUNet) must(t testingT) modelOutcome {
	t.Helper()
	return modelTraining{
		cfg: u.cfg, world: u.world, steps: u.steps,
		schedule: zero.Constant{Rate: 2e-3}, rule: zero.DefaultAdamW(),
		build: func() (network, error) { return newUNetwork(u.mode, u.segments) },
	}.must(t)
}

type unetwork struct{ *unet.UNet2DModel }

func tinyConfig() unet.Config {
	c := unet.DefaultConfig()
	c.InChannels, c.OutChannels = 1, 1
	c.BlockOutChannels = []int{2, 4}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D}
	c.LayersPerBlock, c.NormNumGroups, c.AttentionHeadDim = 1, 2, 2
	c.Dropout = 0.1
	return c
}

func newUNetwork(mode framework.Mode, segments int) (network, error) {
	m, err := unet.New(tinyConfig(), 3)
	if err != nil {
		return nil, err
	}
	return unetwork{m}, m.SetCheckpointing(mode, segments)
}

// Loss implements network: everything random is keyed by the number of the sample
// in the training.
func (u unetwork) Loss(t *framework.Tape, s, m, r, world int) (*framework.Tensor, error) {
	const side = 4
	x, target := make([]float32, side*side), make([]float32, side*side)
	sample := 64*s + m*world + r
	stream := framework.NewStream(9, s, sample, "picture")
	stream.FillNorm(x)
	stream.FillNorm(target)
	t.SetSample(framework.Sample{Seed: 5, Step: s, Samples: []int{sample}, Train: true})
	shape := []int{1, 1, side, side}
	pred, err := u.Forward(t, t.Input(shape, x), []int{stream.Intn(1000)})
	if err != nil {
		return nil, err
	}
	return t.MSELoss(pred, t.Constant(shape, target)), nil
}
