package unet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// all is a network with every variant.
func allVariants() Config {
	c := small()
	c.Variants = Variants{
		NumClasses: 3, LabelDropout: 0.5, ParallelBranches: 2, SelfConditioning: true,
		SharedMiddle: true, CheckpointConvIn: true,
	}
	return c
}

// passOf runs a labelled training pass of one sample and returns the gradients, and
// the order in which they came.
func passOf(t *testing.T, m *UNet2DModel, d batch, sample int, opts ...framework.Option) (grads map[string][]float32, order []string) {
	t.Helper()
	grads = map[string][]float32{}
	tape := framework.NewTape(append(opts, framework.WithGradHook(func(p *framework.Param, g dtype.Buffer) error {
		grads[p.Name] = slices.Clone(g.F32)
		order = append(order, p.Name)
		return nil
	}))...)
	tape.SetSample(framework.Sample{Seed: 5, Step: 1, Samples: []int{sample, 0}, Train: true})
	y, err := m.ForwardLabeled(tape, tape.Input(d.shape, d.images), d.timesteps, []int{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	if err := tape.Backward(tape.MSELoss(y, tape.Constant(d.shape, d.targets)), 1); err != nil {
		t.Fatal(err)
	}
	return grads, order
}

// TestVariants: the branches of two samples differ in use and order, the gradients are
// the same bits in every checkpointing mode, and a shared weight's come once.
func TestVariants(t *testing.T) {
	m, d := mustNew(t, allVariants(), 3), newBatch(small(), 2, 8, 8)
	used, orders := map[bool]int{}, map[string]int{}
	for sample := range 12 {
		setCheckpointing(t, m, framework.ModeNone, 0)
		want, order := passOf(t, m, d, sample)
		classes, none := want["class_branch.linear_1.weight"] != nil, want["null_branch.linear_1.weight"] != nil
		if classes == none {
			t.Errorf("sample %d: branch for classes %v, for none %v: want one of them", sample, classes, none)
		}
		used[classes]++
		first := slices.Index(order, "branches.0.resnets.0.conv1.weight") < slices.Index(order, "branches.1.resnets.0.conv1.weight")
		orders[fmt.Sprint(first)]++
		if len(order) != len(want) {
			t.Errorf("sample %d: %d gradients of %d parameters", sample, len(order), len(want))
		}
		for _, mode := range modes[1:] {
			for _, segments := range []int{0, 2} {
				setCheckpointing(t, m, mode, segments)
				got, _ := passOf(t, m, d, sample)
				for name, g := range want {
					if !slices.Equal(g, got[name]) {
						t.Fatalf("sample %d, %v, %d segments: gradient of %s differs", sample, mode, segments, name)
					}
				}
				if len(got) != len(want) {
					t.Errorf("sample %d, %v: %d gradients, want %d", sample, mode, len(got), len(want))
				}
			}
		}
	}
	if len(used) != 2 || len(orders) != 2 {
		t.Errorf("12 samples: branch for classes used %v, small branch first %v: want both of both", used, orders)
	}
	if m.params[0].Shape()[1] != 4 {
		t.Errorf("conv_in has shape %v: want 4 channels in, two of the picture and two of the prediction", m.params[0].Shape())
	}
	for _, p := range m.params {
		if strings.HasPrefix(p.Name, "mid_block.resnets.1") {
			t.Errorf("%s is registered beside the weight it shares", p.Name)
		}
	}
}

// TestVariantsOff: without variants the network is diffusers'.
func TestVariantsOff(t *testing.T) {
	shapes, err := ParamShapes(small())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		if strings.Contains(s.Name, "branch") {
			t.Errorf("parameter %s without variants", s.Name)
		}
	}
	if _, err := mustNew(t, small(), 1).ForwardLabeled(framework.NewTape(), framework.NewTape().Input([]int{1, 2, 8, 8}, make([]float32, 128)), []int{1}, []int{0}); err == nil || !strings.Contains(err.Error(), "num_classes") {
		t.Errorf("labels for a network without classes: %v", err)
	}
	if err := mustNew(t, allVariants(), 1).SaveDiffusers(t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "variants") {
		t.Errorf("a network with variants is written as diffusers' files: %v", err)
	}
	bad := small()
	bad.MidBlockType, bad.Variants = "", Variants{LabelDropout: 2, SharedMiddle: true}
	err = bad.Validate()
	for _, key := range []string{"label_dropout = 2", "num_classes", "shared_middle"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("error %v does not name %s", err, key)
		}
	}
	if _, err := ActivationMemory(allVariants(), Pass{Batch: 2, Height: 8, Width: 8}); err != nil {
		t.Errorf("prediction of memory: %v", err)
	}
}
