//go:build !race

package framework_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
)

// large is the size from which on an allocation in the steady state is a fault.
const large = 4 << 10

// TestStepAllocatesNothingLarge holds that after the first steps the forward and
// the backward pass of a UNet run in memory that is there already, by the sizes in
// the runtime's memory profile. (Under the race detector sync.Pool forgets at
// random.)
func TestStepAllocatesNothingLarge(t *testing.T) {
	// With more processors a goroutine may find scratch that has not been used much.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16} {
		step := unetStep(t, d)
		var found []string
		// Scratch changes hands from step to step until each has grown to its size.
		for range 6 {
			step()
			step()
			if found = allocatedBy(step); len(found) == 0 {
				break
			}
		}
		for _, f := range found {
			t.Errorf("%s: every step makes %s", d, f)
		}
	}
}

// allocatedBy lists the large allocations of one call of f.
func allocatedBy(f func()) (found []string) {
	before := largeAllocations()
	runtime.MemProfileRate = 1
	f()
	runtime.MemProfileRate = 0
	for where, count := range largeAllocations() {
		if n := count - before[where]; n > 0 {
			found = append(found, fmt.Sprintf("%d x %s", n, where))
		}
	}
	return found
}

// unetStep returns a training step, without the optimizer, of the network of
// configs/zero2.toml.
func unetStep(t *testing.T, d dtype.DType) func() {
	c := unet.DefaultConfig()
	c.InChannels, c.OutChannels = 1, 1
	c.BlockOutChannels = []int{16, 32, 32}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D, unet.UpBlock2D}
	c.NormNumGroups = 8
	m, err := unet.New(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	const batch = 2
	shape, timesteps := []int{batch, 1, 32, 32}, []int{10, 500}
	input := make([]float32, batch*32*32)
	framework.NewStream(1, 0, 0, "test").FillNorm(input)
	hook := func(*framework.Param, dtype.Buffer) error { return nil }
	tape := framework.NewTape(framework.WithCompute(d), framework.WithGradHook(hook))
	return func() {
		pred, err := m.Forward(tape, tape.Input(shape, input), timesteps)
		if err != nil {
			t.Fatal(err)
		}
		if err := tape.Backward(tape.MSELoss(pred, tape.Constant(shape, input)), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// largeAllocations counts the large allocations that the profile has seen, by
// size and place.
func largeAllocations() map[string]int64 {
	runtime.GC() // the profile shows what was allocated before the last collection
	var records []runtime.MemProfileRecord
	n, ok := runtime.MemProfile(nil, true)
	for !ok {
		records = make([]runtime.MemProfileRecord, n+100)
		n, ok = runtime.MemProfile(records, true)
	}
	counts := make(map[string]int64)
	for _, r := range records[:n] {
		if r.AllocObjects > 0 && r.AllocBytes/r.AllocObjects > large {
			counts[fmt.Sprintf("%d bytes by %s", r.AllocBytes/r.AllocObjects, place(r.Stack()))] += r.AllocObjects
		}
	}
	return counts
}

// place names the innermost functions of a stack.
func place(stack []uintptr) string {
	frames, s := runtime.CallersFrames(stack), ""
	for range 5 {
		f, more := frames.Next()
		s += " " + f.Function
		if !more {
			break
		}
	}
	return s
}
