package framework

import "fmt"

// Mode says how a checkpointed segment gets its activations back.
type Mode uint8

const (
	// ModeNone keeps all activations.
	ModeNone Mode = iota
	// ModeReentrant keeps only the segment's output; its backward calls the
	// function again and runs a backward of its own inside the outer one.
	ModeReentrant
	// ModeNonReentrant records the segment, drops the activations inside, and
	// repeats the recorded operations when the backward arrives.
	ModeNonReentrant
)

// ParseMode reads none, reentrant or non_reentrant.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "none", "":
		return ModeNone, nil
	case "reentrant":
		return ModeReentrant, nil
	case "non_reentrant":
		return ModeNonReentrant, nil
	}
	return 0, fmt.Errorf("unknown checkpointing mode %q: allowed are none, reentrant, non_reentrant", s)
}

func (m Mode) String() string {
	return [...]string{"none", "reentrant", "non_reentrant"}[m]
}

// Checkpoint runs f, a segment of the model, on x and trades the memory of its
// activations for computing them again in the backward pass. It returns what f
// returns: the segment's one output.
//
// f must perform the same operations each time it is called. It may use any
// other tensor and parameter from outside, whether it needs a gradient or not,
// but not through a variable that is assigned again later: what runs through
// the segments belongs in x. Gradients are the same bits in every mode:
// contributions are added in the same order, and randomness is keyed, not drawn.
//
// Where nothing is recorded, what f makes but its result is released when it
// returns, in every mode.
func (t *Tape) Checkpoint(mode Mode, x *Tensor, f func(x *Tensor) *Tensor) *Tensor {
	if t.segment != nil {
		return t.segment(t, mode, x, f)
	}
	return t.checkpoint(mode, x, f)
}

// CheckpointFunc runs a segment as Tape.Checkpoint does.
type CheckpointFunc func(t *Tape, mode Mode, x *Tensor, f func(x *Tensor) *Tensor) *Tensor

// WithCheckpoint puts another implementation, made of the tape's own, in the place of
// Tape.Checkpoint: for experiments with how others do it.
func WithCheckpoint(wrap func(own CheckpointFunc) CheckpointFunc) Option {
	return func(t *Tape) { t.segment = wrap((*Tape).checkpoint) }
}

func (t *Tape) checkpoint(mode Mode, x *Tensor, f func(x *Tensor) *Tensor) *Tensor {
	run := func() *Tensor { return f(x) }
	switch {
	case !t.recording || mode == ModeReentrant:
		return t.reentrant(run)
	case mode == ModeNonReentrant:
		return t.nonReentrant(run)
	}
	return run()
}

// reentrantOp is a whole segment as one operation.
type reentrantOp struct {
	f   func() *Tensor
	out *Tensor
}

func (t *Tape) reentrant(f func() *Tensor) *Tensor {
	y, inside := t.isolated(f)
	if !inside || !y.needGrad || !t.recording {
		return y
	}
	// needGrad is taken from the run itself: a segment whose inputs need no
	// gradient still has parameters inside that do.
	t.nodes = append(t.nodes, &node{name: "Checkpoint", op: &reentrantOp{f, y}, out: y, module: t.module})
	return y
}

// isolated runs f without recording and releases all it made but the result.
// inside reports whether f made the result (and did not just pass one through).
func (t *Tape) isolated(f func() *Tensor) (y *Tensor, inside bool) {
	recording, live := t.recording, t.live
	t.recording, t.live = false, nil
	y = f()
	made := t.live
	for _, x := range made {
		if x == y {
			inside = true
		} else {
			t.release(x)
		}
	}
	t.recording, t.live = recording, live
	if inside {
		t.live = append(t.live, y)
	}
	return y, inside
}

func (*reentrantOp) placesOutput() {}

func (o *reentrantOp) forward(t *Tape) {
	counting := t.counting
	t.counting = false
	y, _ := t.isolated(o.f)
	t.counting = counting
	// The segment's output tensor keeps its identity and takes the memory.
	o.out.st, y.st = y.st, nil
	t.dropLast(y)
}

func (o *reentrantOp) backward(t *Tape) {
	nodes, recording, counting, live := t.nodes, t.recording, t.counting, t.live
	t.nodes, t.recording, t.counting, t.live = nil, true, false, nil
	y := o.f()
	y.grad, o.out.grad = o.out.grad, nil
	// The inner pass adds straight to the gradients of tensors outside the
	// segment, in the order in which the plain pass would.
	if err := t.runBackward(t.nodes); err != nil && t.hookErr == nil {
		t.hookErr = err
	}
	t.releaseLive(nil)
	t.nodes, t.recording, t.counting, t.live = nodes, recording, counting, live
}

// dropLast takes x off the list of live tensors, where it is the newest.
func (t *Tape) dropLast(x *Tensor) {
	if n := len(t.live); n > 0 && t.live[n-1] == x {
		t.live = t.live[:n-1]
	}
}

// segment is the recorded run of operations of a non-reentrant checkpoint.
type segment struct {
	nodes []*node
	full  bool // activations are there
}

func (t *Tape) nonReentrant(f func() *Tensor) *Tensor {
	start, liveStart := len(t.nodes), len(t.live)
	y := f()
	s := &segment{nodes: append([]*node(nil), t.nodes[start:]...)}
	recorded := make(map[*Tensor]bool, len(s.nodes))
	for _, n := range s.nodes {
		n.seg = s // an enclosing segment replays what is inside it too
		recorded[n.out] = true
	}
	// Only outputs of recorded operations can be computed again; what needs no
	// gradient (inputs made inside, say) is small or rare, and stays.
	for _, x := range t.live[liveStart:] {
		if x != y && recorded[x] {
			t.drop(x)
		}
	}
	return y
}

// drop frees an activation that will be computed again.
func (t *Tape) drop(x *Tensor) {
	if x.st != nil {
		t.arena.put(x.st)
		x.st = nil
	}
}

// replay computes the segment's activations again, once.
func (s *segment) replay(t *Tape) {
	if s.full {
		return
	}
	s.full = true
	for _, n := range s.nodes {
		if n.out.st != nil {
			continue
		}
		if _, own := n.op.(placesOutput); !own {
			n.out.st = t.arena.get(n.out.dtype, n.out.Len())
		}
		t.module = n.module
		t.perform(n.name, n.op, n.out, n.in)
	}
}
