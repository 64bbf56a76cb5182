package unet

import (
	"fmt"
	"math"

	"github.com/zerogap/zerogap/framework"
)

// Forward predicts the noise of x [B,in,H,W] at timesteps [B] and returns
// [B,out,H,W], a tensor of the tape t.
//
// H and W need not be multiples of anything: the up path takes its sizes from
// the skip connections. The errors, which name both numbers, are channels that
// do not fit the model, a number of timesteps that is not B, and an image that
// is too small to be halved once per level.
func (m *UNet2DModel) Forward(t *framework.Tape, x *framework.Tensor, timesteps []int) (*framework.Tensor, error) {
	return m.ForwardLabeled(t, x, timesteps, nil)
}

// ForwardLabeled is Forward for a network with classes, see Variants: labels [B] are
// from 0 to NumClasses-1, nil for no class.
func (m *UNet2DModel) ForwardLabeled(t *framework.Tape, x *framework.Tensor, timesteps, labels []int) (*framework.Tensor, error) {
	if err := m.check(x, timesteps); err != nil {
		return nil, err
	}
	if err := m.classes.check(labels, x.Dim(0)); err != nil {
		return nil, err
	}
	x = m.conditioned(t, x, timesteps, labels)
	return m.predict(t, x, timesteps, labels), nil
}

// predict is the network; x [B,inputs,H,W] has been checked.
func (m *UNet2DModel) predict(t *framework.Tape, x *framework.Tensor, timesteps, labels []int) *framework.Tensor {
	features := m.embed(t, timesteps)
	e := m.classes.forward(t, m.timeEmbedding.Forward(t, features), features, labels)
	// Every resnet applies SiLU to the time embedding first, so it is done once.
	temb := t.SiLU(e)
	h := m.first(t, x)
	h = m.runSegments(t, h, temb)
	return m.convOut.Forward(t, m.normOut.ForwardSiLU(t, h))
}

// first is the first convolution.
func (m *UNet2DModel) first(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	if !m.cfg.Variants.CheckpointConvIn {
		return m.convIn.Forward(t, x)
	}
	return t.Checkpoint(m.mode, x, func(x *framework.Tensor) *framework.Tensor { return m.convIn.Forward(t, x) })
}

func (m *UNet2DModel) check(x *framework.Tensor, timesteps []int) error {
	shape := x.Shape()
	if len(shape) != 4 {
		return fmt.Errorf("unet: input of shape %v: must be [batch, channels, height, width]", shape)
	}
	if shape[1] != m.cfg.InChannels {
		return fmt.Errorf("unet: images of %d channels for a model with in_channels = %d: set in_channels to %d or convert the images", shape[1], m.cfg.InChannels, shape[1])
	}
	if len(timesteps) != shape[0] {
		return fmt.Errorf("unet: %d timesteps for a batch of %d images: one per image is needed", len(timesteps), shape[0])
	}
	least := m.minSize()
	if shape[0] < 1 || shape[2] < least || shape[3] < least {
		return fmt.Errorf("unet: batch of %d images of %dx%d: with %d levels and downsample_padding = %d at least one image of at least %dx%d is needed",
			shape[0], shape[2], shape[3], len(m.cfg.BlockOutChannels), m.cfg.DownsamplePadding, least, least)
	}
	return nil
}

// minSize is the smallest height or width: with padding 1 halving rounds up, so
// that one pixel stays one; with padding 0 it rounds down.
func (m *UNet2DModel) minSize() int {
	if m.cfg.DownsamplePadding == 1 {
		return 1
	}
	return 1 << (len(m.cfg.BlockOutChannels) - 1)
}

// runSegments takes h through all steps, with the stack of skip connections
// that starts with h itself.
func (m *UNet2DModel) runSegments(t *framework.Tape, h, temb *framework.Tensor) *framework.Tensor {
	skips := []*framework.Tensor{h}
	for _, seg := range m.segments {
		stack := skips // of this segment: its backward calls the function again
		h = t.Checkpoint(m.mode, h, func(h *framework.Tensor) *framework.Tensor {
			return seg.forward(t, h, temb, stack)
		})
		skips = seg.stack(skips, h)
	}
	return h
}

// segment is a run of steps of which at most the last pushes.
type segment []step

func (s segment) forward(t *framework.Tape, h, temb *framework.Tensor, skips []*framework.Tensor) *framework.Tensor {
	for _, st := range s {
		var skip *framework.Tensor
		if n := len(skips); n > 0 {
			skip = skips[n-1]
			if st.pop {
				skips = skips[:n-1]
			}
		}
		h = st.forward(t, h, temb, skip)
	}
	return h
}

// stack returns the stack of skip connections after the segment, whose output is h.
func (s segment) stack(skips []*framework.Tensor, h *framework.Tensor) []*framework.Tensor {
	for _, st := range s {
		if st.pop {
			skips = skips[:len(skips)-1]
		}
	}
	if s[len(s)-1].push {
		skips = append(skips, h)
	}
	return skips
}

// maxPeriod is the longest period of the sinusoids, in timesteps over 2π.
const maxPeriod = 10000

// timestepFreqs returns the dim/2 frequencies exp(−ln(maxPeriod)·i/(dim/2−shift)).
func timestepFreqs(dim, shift int) []float64 {
	half := dim / 2
	f := make([]float64, half)
	for i := range f {
		f[i] = math.Exp(-math.Log(maxPeriod) * float64(i) / float64(half-shift))
	}
	return f
}

// embed returns the sinusoidal features [B,C0] of the timesteps, C0 the
// channels of the first level: sines then cosines, or the other way round, and
// a zero if C0 is odd. They are computed in float64, because in 16 bits
// neighbouring timesteps have the same features.
func (m *UNet2DModel) embed(t *framework.Tape, timesteps []int) *framework.Tensor {
	dim, half := m.cfg.BlockOutChannels[0], len(m.freqs)
	sinAt, cosAt := 0, half
	if m.cfg.FlipSinToCos {
		sinAt, cosAt = half, 0
	}
	e := make([]float32, len(timesteps)*dim)
	for b, ts := range timesteps {
		row := e[b*dim : (b+1)*dim]
		for i, f := range m.freqs {
			sin, cos := math.Sincos(float64(ts) * f)
			row[sinAt+i], row[cosAt+i] = float32(sin), float32(cos)
		}
	}
	return t.Input([]int{len(timesteps), dim}, e)
}
