package unet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

var modes = []framework.Mode{framework.ModeNone, framework.ModeReentrant, framework.ModeNonReentrant}

func variants() map[string]Config {
	plain := small()
	plain.Dropout = 0.3
	scaled := plain
	scaled.ResnetTimeScaleShift, scaled.LayersPerBlock, scaled.DownsamplePadding = timeScaleShift, 2, 0
	bare := plain
	bare.MidBlockType = ""
	return map[string]Config{"attention": plain, "scale shift": scaled, "no middle block": bare}
}

func TestCheckpointingKeepsEveryBit(t *testing.T) {
	for name, c := range variants() {
		m, d := mustNew(t, c, 2), newBatch(c, 2, 13, 9)
		n := len(m.steps)
		for _, format := range []dtype.DType{dtype.F32, dtype.BF16} {
			compute := framework.WithCompute(format)
			setCheckpointing(t, m, framework.ModeNone, 0)
			want := run(t, m, d, compute)
			for _, mode := range modes {
				for _, segments := range []int{0, 1, 2, 3, n/2 + 1, n} {
					t.Run(fmt.Sprintf("%s/%v/%v/%d", name, format, mode, segments), func(t *testing.T) {
						setCheckpointing(t, m, mode, segments)
						sameBits(t, run(t, m, d, compute), want)
					})
				}
			}
		}
	}
}

func setCheckpointing(t *testing.T, m *UNet2DModel, mode framework.Mode, segments int) {
	t.Helper()
	if err := m.SetCheckpointing(mode, segments); err != nil {
		t.Fatal(err)
	}
}

// With the first half of the network frozen, segments there have inputs and
// parameters that need no gradient.
func TestCheckpointingWithFrozenParameters(t *testing.T) {
	c := variants()["attention"]
	m, d := mustNew(t, c, 2), newBatch(c, 2, 13, 9)
	frozen := 0
	for _, p := range m.params {
		if !strings.HasPrefix(p.Name, "up_blocks") && !strings.HasPrefix(p.Name, "conv_out") {
			p.Frozen = true
			frozen++
		}
	}
	want := run(t, m, d)
	if len(want.grads) != len(m.params)-frozen {
		t.Fatalf("%d gradients for %d trainable parameters", len(want.grads), len(m.params)-frozen)
	}
	for _, mode := range modes {
		for _, segments := range []int{0, 1, 3} {
			setCheckpointing(t, m, mode, segments)
			sameBits(t, run(t, m, d), want)
		}
	}
}

// Three steps of gradient descent end in the same weights.
func TestCheckpointingTrainsTheSameWeights(t *testing.T) {
	c := variants()["attention"]
	train := func(mode framework.Mode, segments int) []*framework.Param {
		m, d := mustNew(t, c, 2), newBatch(c, 2, 12, 12)
		setCheckpointing(t, m, mode, segments)
		for i := range 3 {
			d.sample.Step = i
			r := run(t, m, d)
			for _, p := range m.params {
				w := p.Value.Data().F32
				for j, g := range r.grads[p.Name] {
					w[j] -= 0.01 * float32(g)
				}
			}
		}
		return m.params
	}
	want := train(framework.ModeNone, 0)
	for _, mode := range modes[1:] {
		for i, p := range train(mode, 2) {
			if distance(p.Value.Float32s(), want[i].Value.Float32s()) != 0 {
				t.Errorf("%v: %s differs after 3 steps", mode, p.Name)
			}
		}
	}
}

func TestCheckpointingSavesMemory(t *testing.T) {
	c := variants()["attention"]
	c.LayersPerBlock = 2
	m, d := mustNew(t, c, 2), newBatch(c, 2, 16, 16)
	setCheckpointing(t, m, framework.ModeNone, 0)
	all := run(t, m, d).peak
	for _, mode := range modes[1:] {
		setCheckpointing(t, m, mode, 0)
		if got := run(t, m, d).peak; got > all*6/10 {
			t.Errorf("%v: peak of %d bytes, without checkpointing %d", mode, got, all)
		}
	}
}

func TestSetCheckpointingRange(t *testing.T) {
	m := mustNew(t, small(), 1)
	for _, n := range []int{-1, len(m.steps) + 1} {
		err := m.SetCheckpointing(framework.ModeReentrant, n)
		if want := fmt.Sprintf("segments = %d", n); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprint(len(m.steps))) {
			t.Errorf("%d segments: error %v", n, err)
		}
	}
}
