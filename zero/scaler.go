package zero

import (
	"fmt"
	"math"
)

// scaler is the loss scale. A dynamic one follows DeepSpeed's rules: the last
// overflow that the hysteresis allows halves it, LossScaleWindow good steps in a
// row double it (at the last of them), and a doubling refills the hysteresis.
type scaler struct {
	cfg     FP16
	dynamic bool
	scale   float64
	left    int // overflows until the scale is lowered
	good    int // good steps in a row
}

func newScaler(c FP16) *scaler {
	s := &scaler{cfg: c, scale: 1, left: c.Hysteresis}
	switch {
	case !c.Enabled:
	case c.LossScale > 0:
		s.scale = c.LossScale
	default:
		s.dynamic = true
		s.scale = math.Ldexp(1, c.InitialScalePower)
	}
	return s
}

// update counts one step. An overflow at the lowest scale is an error: there is
// nothing left to lower.
func (s *scaler) update(overflow bool) error {
	switch {
	case !s.dynamic:
	case !overflow:
		s.grow()
	case s.left > 1:
		s.good = 0
		s.left--
	case s.scale <= s.cfg.MinLossScale:
		return fmt.Errorf("gradients overflow at the lowest loss scale, %g (fp16.min_loss_scale): lower the learning rate, clip gradients, or train in bf16", s.scale)
	default:
		s.good = 0
		s.scale = max(s.scale/2, s.cfg.MinLossScale)
	}
	return nil
}

func (s *scaler) grow() {
	s.good++
	if s.cfg.ConsecutiveHysteresis {
		s.left = s.cfg.Hysteresis
	}
	if s.good%s.cfg.LossScaleWindow == 0 {
		s.left = s.cfg.Hysteresis
		s.scale *= 2
	}
}
