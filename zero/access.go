package zero

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero/comm"
)

// The methods of this file reach one parameter by its name. They are collective:
// all ranks call them in the same order with the same arguments, between backwards.
// What they return is the caller's; what they take is not kept.

// FullParam returns the fp32 master weights of the named parameter, row-major. A
// frozen parameter has none: its compute copy is returned, widened.
func (o *Optimizer) FullParam(ctx context.Context, name string) ([]float32, error) {
	i, err := o.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	if o.params[i].Frozen {
		w := make([]float32, o.params[i].Value.Len())
		kernel.Widen(w, o.params[i].Value)
		return w, nil
	}
	return o.collect(ctx, "master weights of "+name, i, func(dst []float32, part Interval) {
		copy(dst, o.shard.master[part.Lo:part.Hi])
	})
}

// SetFullParam replaces the master weights of the named parameter, and its compute
// copy by their rounding.
func (o *Optimizer) SetFullParam(ctx context.Context, name string, w []float32) error {
	i, err := o.lookupFor(ctx, "weights", name, w)
	if err != nil {
		return err
	}
	o.place(i, w, func(part Interval, w []float32) { copy(o.shard.master[part.Lo:part.Hi], w) })
	if len(w) > 0 {
		kernel.Round(o.params[i].Value, w)
	}
	return nil
}

// FullGrad returns the gradient of the named parameter as Step will measure it:
// averaged over micro-batches and ranks, without loss scale, not yet clipped. It
// exists between the last backward of a step and Step.
func (o *Optimizer) FullGrad(ctx context.Context, name string) ([]float32, error) {
	i, err := o.lookupGrad(ctx, name)
	if err != nil {
		return nil, err
	}
	grad := gradient{divisor: o.divisor(), clip: 1}
	return o.collect(ctx, "gradient of "+name, i, func(dst []float32, part Interval) {
		grad.read(dst, o.shard.acc.Slice(part.Lo, part.Hi))
	})
}

// SetFullGrad replaces it. The accumulators hold sums in their own format, so what
// Step takes is g times the divisor, rounded to it, and divided again: g itself
// with fp32 accumulators where the number of micro-batches times the loss scale is
// a power of two, and within a rounding of it otherwise.
func (o *Optimizer) SetFullGrad(ctx context.Context, name string, g []float32) error {
	if _, err := o.lookupGrad(ctx, name); err != nil {
		return err
	}
	i, err := o.lookupFor(ctx, "gradient", name, g)
	if err != nil {
		return err
	}
	divisor := o.divisor()
	o.place(i, g, func(part Interval, g []float32) {
		sums := make([]float32, len(g))
		for k, v := range g {
			sums[k] = float32(float64(v) * divisor)
		}
		kernel.Round(o.shard.acc.Slice(part.Lo, part.Hi), sums)
	})
	return nil
}

// FullState returns one of the rule's states of the named parameter, for instance
// AdamW's "exp_avg".
func (o *Optimizer) FullState(ctx context.Context, name, key string) ([]float32, error) {
	i, k, err := o.lookupState(ctx, name, key)
	if err != nil {
		return nil, err
	}
	return o.collect(ctx, key+" of "+name, i, func(dst []float32, part Interval) {
		o.shard.eachState(k, part, func(state []float32, at int) { copy(dst[at:], state) })
	})
}

// SetFullState replaces it.
func (o *Optimizer) SetFullState(ctx context.Context, name, key string, x []float32) error {
	_, k, err := o.lookupState(ctx, name, key)
	if err != nil {
		return err
	}
	i, err := o.lookupFor(ctx, key, name, x)
	if err != nil {
		return err
	}
	o.place(i, x, func(part Interval, x []float32) {
		o.shard.eachState(k, part, func(state []float32, at int) { copy(state, x[at:]) })
	})
	return nil
}

// lookup finds a parameter by name, and makes the communicator free.
func (o *Optimizer) lookup(ctx context.Context, name string) (int, error) {
	if o.closed {
		return 0, errClosed
	}
	if o.grads.open() {
		return 0, fmt.Errorf("parameter %q inside a backward: call EndBackward first", name)
	}
	i := slices.Index(o.plan.names, name)
	if i < 0 {
		return 0, fmt.Errorf("no parameter is named %q; there are %s", name, listed(o.plan.names))
	}
	return i, o.grads.drain(ctx)
}

// lookupGrad finds the gradient of a parameter, complete.
func (o *Optimizer) lookupGrad(ctx context.Context, name string) (int, error) {
	i, err := o.lookup(ctx, name)
	switch a := o.cfg.GradientAccumulationSteps; {
	case err != nil:
		return 0, err
	case o.params[i].Frozen:
		return 0, fmt.Errorf("parameter %q is frozen: it has no gradient", name)
	case o.noSync:
		return 0, errors.New("gradient inside NoSync: ranks have not met; ask afterwards")
	case o.micro == 0 || o.cfg.ManagedGradientAccumulation && o.micro < a:
		return 0, fmt.Errorf("gradient of %q after %d of %d backwards: it exists between the last backward and Step", name, o.micro, a)
	}
	return i, o.complete(ctx)
}

// lookupState finds a state of a parameter, and its number in the group's rule.
func (o *Optimizer) lookupState(ctx context.Context, name, key string) (i, k int, err error) {
	if i, err = o.lookup(ctx, name); err != nil {
		return 0, 0, err
	}
	if o.params[i].Frozen {
		return 0, 0, fmt.Errorf("parameter %q is frozen: it has no optimizer state", name)
	}
	rule := o.groups[o.params[i].Group].Rule
	states := rule.States()
	if k = slices.Index(states, key); k >= 0 {
		return i, k, nil
	}
	if len(states) == 0 {
		return 0, 0, fmt.Errorf("parameter %q has no state %q: %v has none", name, key, rule)
	}
	return 0, 0, fmt.Errorf("parameter %q has no state %q: %v has %s", name, key, rule, listed(states))
}

// lookupFor finds a parameter that x is for, and compares x with the other ranks.
func (o *Optimizer) lookupFor(ctx context.Context, what, name string, x []float32) (int, error) {
	i, err := o.lookup(ctx, name)
	if err != nil {
		return 0, err
	}
	if n, _ := o.params[i].Len(); len(x) != n {
		return 0, fmt.Errorf("parameter %q: %s of %d elements for shape %v, want %d", name, what, len(x), o.params[i].Shape, n)
	}
	h := fnv.New64a()
	var word [4]byte
	for _, v := range x {
		b := math.Float32bits(v)
		word[0], word[1], word[2], word[3] = byte(b), byte(b>>8), byte(b>>16), byte(b>>24)
		h.Write(word[:])
	}
	return i, o.agree(ctx, fmt.Sprintf("%s of parameter %q with hash %016x", what, name, h.Sum64()))
}

// collect gathers parameter i from the ranks that own it. read writes what this
// rank has at offsets of its shard.
func (o *Optimizer) collect(ctx context.Context, what string, i int, read func(dst []float32, part Interval)) ([]float32, error) {
	s, ok := o.plan.span(i)
	if !ok {
		return []float32{}, nil
	}
	full := make([]float32, s.Len())
	part := o.shard.region.cut(s.Interval)
	if !o.plan.gathers() {
		read(full, part)
		return full, nil
	}
	bounds := make([]int, o.plan.World+1)
	o.plan.owners(s.Interval, bounds)
	all := dtype.Make(dtype.F32, s.Len()) // in order of the owners
	mine := all.Slice(bounds[o.comm.Rank()], bounds[o.comm.Rank()+1])
	read(mine.F32, part)
	sig := o.signature()
	sig.Name, sig.Bucket = what, -1
	if err := comm.Do(ctx, o.comm, &comm.Op{Kind: comm.AllGather, Sig: sig, Bounds: bounds, Send: mine, Recv: all}); err != nil {
		return nil, o.grads.fail(err)
	}
	for _, p := range o.plan.places(s.Interval) {
		copy(full[p.Lo-s.Lo:p.Hi-s.Lo], all.F32[p.at:])
	}
	return full, nil
}

// place calls write with the offsets of this rank's part of parameter i and the
// elements of x there.
func (o *Optimizer) place(i int, x []float32, write func(part Interval, x []float32)) {
	s, ok := o.plan.span(i)
	if !ok {
		return
	}
	o.shard.region.each(o.shard.region.cut(s.Interval), func(iv Interval, at int) {
		write(Interval{at, at + iv.Len()}, x[iv.Lo-s.Lo:iv.Hi-s.Lo])
	})
}

// listed quotes names, the first of them when there are many.
func listed(names []string) string {
	const most = 8
	var b strings.Builder
	for i, n := range names[:min(most, len(names))] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}
	if n := len(names) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}
