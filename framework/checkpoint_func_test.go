package framework

import "testing"

// TestWithCheckpoint: another implementation is asked for every segment, and one made
// of the tape's own changes nothing.
func TestWithCheckpoint(t *testing.T) {
	w := NewParam("w", []float32{2, 3}, 2)
	asked := 0
	run := func(opts ...Option) []float32 {
		w.Grad.Clear()
		tape := NewTape(opts...)
		x := tape.Input([]int{2}, []float32{5, 7})
		if x.NeedsGrad() || !w.Value.NeedsGrad() {
			t.Error("an input needs a gradient, or a parameter does not")
		}
		y := tape.Checkpoint(ModeReentrant, x, func(x *Tensor) *Tensor { return tape.Mul(x, w.Value) })
		if !y.NeedsGrad() {
			t.Error("the output of a segment with a parameter needs no gradient")
		}
		if err := tape.Backward(tape.MSELoss(y, tape.Constant([]int{2}, []float32{0, 0})), 1); err != nil {
			t.Fatal(err)
		}
		return append([]float32(nil), w.Grad.F32...)
	}
	plain := run()
	wrapped := run(WithCheckpoint(func(own CheckpointFunc) CheckpointFunc {
		return func(t *Tape, mode Mode, x *Tensor, f func(*Tensor) *Tensor) *Tensor {
			asked++
			return own(t, mode, x, f)
		}
	}))
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
	for i := range plain {
		if plain[i] != wrapped[i] || plain[i] == 0 {
			t.Errorf("gradient %d is %v, want %v", i, wrapped[i], plain[i])
		}
	}
}
