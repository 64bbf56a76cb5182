package unet

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/framework"
)

func TestForwardErrorsNameBothNumbers(t *testing.T) {
	padded, bare := small(), small()
	bare.DownsamplePadding = 0
	for _, c := range []struct {
		cfg       Config
		shape     []int
		timesteps int
		want      []string
	}{
		{padded, []int{1, 3, 8, 8}, 1, []string{"3 channels", "in_channels = 2"}},
		{padded, []int{2, 2, 8, 8}, 1, []string{"1 timesteps", "2 images"}},
		{padded, []int{2, 8, 8}, 2, []string{"[2 8 8]", "[batch, channels, height, width]"}},
		{bare, []int{1, 2, 8, 3}, 1, []string{"8x3", "at least 4x4"}},
	} {
		tape := framework.NewTape()
		n := 1
		for _, d := range c.shape {
			n *= d
		}
		_, err := mustNew(t, c.cfg, 1).Forward(tape, tape.Input(c.shape, make([]float32, n)), make([]int, c.timesteps))
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v: error %v, want %q", c.shape, err, w)
			}
		}
	}
}

func TestOutputHasTheSizeOfTheInput(t *testing.T) {
	c := small()
	c.OutChannels = 5
	for padding := range 2 {
		c.DownsamplePadding = padding
		m := mustNew(t, c, 1)
		for _, size := range [][2]int{{13, 9}, {12, 12}, {4, 7}, {16, 5}} {
			d := newBatch(c, 2, size[0], size[1])
			tape := framework.NewTape()
			out, err := m.Forward(tape, tape.Input(d.shape, d.images), d.timesteps)
			if err != nil {
				t.Fatal(err)
			}
			if want := []int{2, 5, size[0], size[1]}; !slices.Equal(out.Shape(), want) {
				t.Errorf("padding %d: shape %v, want %v", padding, out.Shape(), want)
			}
		}
	}
}

// The sinusoids of DDPM against their formula.
func TestTimestepEmbedding(t *testing.T) {
	timesteps := []int{0, 1, 10, 999}
	for _, c := range []struct {
		channels, shift int
		flip            bool
	}{{8, 0, true}, {8, 1, false}, {7, 0, false}} {
		cfg := DefaultConfig()
		cfg.BlockOutChannels, cfg.FreqShift, cfg.FlipSinToCos = []int{c.channels}, c.shift, c.flip
		cfg.DownBlockTypes, cfg.UpBlockTypes = []string{DownBlock2D}, []string{UpBlock2D}
		cfg.NormNumGroups, cfg.AttentionHeadDim = 1, 0
		got := mustNew(t, cfg, 1).embed(framework.NewTape(), timesteps).Float32s()
		half := c.channels / 2
		for b, ts := range timesteps {
			for i := range half {
				angle := float64(ts) / math.Pow(10000, float64(i)/float64(half-c.shift))
				sin, cos := got[b*c.channels+i], got[b*c.channels+half+i]
				if c.flip {
					sin, cos = cos, sin
				}
				if math.Abs(float64(sin)-math.Sin(angle)) > 1e-7 || math.Abs(float64(cos)-math.Cos(angle)) > 1e-7 {
					t.Errorf("%+v: t=%d i=%d: %v, %v for angle %v", c, ts, i, sin, cos, angle)
				}
			}
			if c.channels%2 == 1 && got[b*c.channels+c.channels-1] != 0 {
				t.Errorf("%+v: odd channel is not 0", c)
			}
		}
	}
}

func TestDropoutIsKeyedByStepAndTurnsOff(t *testing.T) {
	c := small()
	c.Dropout = 0.5
	m, d := mustNew(t, c, 1), newBatch(c, 2, 8, 8)
	first := run(t, m, d)
	sameBits(t, run(t, m, d), first)
	d.sample.Step++
	if slices.Equal(run(t, m, d).output, first.output) {
		t.Error("two steps have the same masks")
	}
	d.sample.Train = false
	off := run(t, m, d)
	c.Dropout = 0
	sameBits(t, run(t, mustNew(t, c, 1), d), off)
	if slices.Equal(off.output, first.output) {
		t.Error("dropout does nothing")
	}
}

// What the network makes of an image depends on the image, its timestep and its
// global sample index, not on where in which batch it sits.
func TestRowsAreIndependent(t *testing.T) {
	c := small()
	c.Dropout = 0.3
	m, d := mustNew(t, c, 1), newBatch(c, 4, 13, 9)
	whole := run(t, m, d).output
	row := len(whole) / 4
	for _, rows := range [][]int{{3, 1, 0, 2}, {2, 3}, {1}} {
		got := run(t, m, d.rows(rows...)).output
		for i, r := range rows {
			if !slices.Equal(got[i*row:(i+1)*row], whole[r*row:(r+1)*row]) {
				t.Errorf("rows %v: image %d comes out different", rows, r)
			}
		}
	}
}

func TestThreadCountChangesNoBit(t *testing.T) {
	c := small()
	c.BlockOutChannels, c.Dropout = []int{8, 16, 16}, 0.1
	m, d := mustNew(t, c, 1), newBatch(c, 3, 21, 16)
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	want := run(t, m, d)
	for _, n := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			runtime.GOMAXPROCS(n)
			sameBits(t, run(t, m, d), want)
		})
	}
}
