package engine_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// train runs steps of a network on two ranks at stage 2 in bf16, with reentrant
// checkpointing, two micro-batches a step. After each step rank 0 calls after, while
// the other rank waits.
func train(t *testing.T, net unet.Config, batch, side, steps int, after func(step int)) {
	t.Helper()
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = 2
	cfg.BF16.Enabled = true
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	cfg.ZeroOptimization.ReduceBucketSize = 20_000
	err := local.Run(context.Background(), 2, func(ctx context.Context, c comm.Communicator) error {
		m, err := unet.New(net, 1)
		if err != nil {
			return err
		}
		if err := m.SetCheckpointing(framework.ModeReentrant, 0); err != nil {
			return err
		}
		e, err := engine.New(ctx, m, cfg, zero.Constant{Rate: 1e-3}, zero.DefaultAdamW(), c)
		if err != nil {
			return err
		}
		defer e.Close()
		x, shape, timesteps := make([]float32, batch*side*side), []int{batch, 1, side, side}, make([]int, batch)
		for step := range steps {
			for range 2 {
				framework.NewStream(1, step, c.Rank(), "test").FillNorm(x)
				pred, err := m.Forward(e.Tape(), e.Tape().Input(shape, x), timesteps)
				if err != nil {
					return err
				}
				if err := e.Backward(ctx, e.Tape().MSELoss(pred, e.Tape().Constant(shape, x))); err != nil {
					return err
				}
			}
			if _, err := e.Step(ctx); err != nil {
				return err
			}
			// The ranks meet before and after the look.
			for i := range 2 {
				if err := comm.Do(ctx, c, &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "look"}}); err != nil {
					return err
				}
				if i == 0 && c.Rank() == 0 {
					after(step)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStepAllocatesNothingLarge: after the first steps no allocation of a step is
// larger than 4 KiB. Working memory of the kernels grows until each piece has seen
// the largest operation, which depends on who takes which piece: one of several
// runs of steps must be clean.
func TestStepAllocatesNothingLarge(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const warm, run, runs, large = 5, 4, 5, 4 << 10
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	var before map[[32]uintptr]int64
	var grown []string
	clean := false
	train(t, mnistNet(), 4, 16, warm+run*runs, func(step int) {
		switch done := step + 1 - warm; {
		case done == -1:
			runtime.MemProfileRate = 1
		case done >= 0 && done%run == 0 && !clean:
			before, grown = largeAllocations(large, before)
			clean = done > 0 && len(grown) == 0
		}
	})
	if !clean {
		t.Errorf("every %d steps something large was allocated:\n%s", run, strings.Join(grown, "\n"))
	}
}

// largeAllocations counts the allocations of more than size bytes by call stack, and
// describes those that are more than in before.
func largeAllocations(size int64, before map[[32]uintptr]int64) (counts map[[32]uintptr]int64, grown []string) {
	runtime.GC() // the profile is that of the last complete cycle
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<14)
	n, ok := runtime.MemProfile(records, true)
	if !ok {
		return nil, []string{fmt.Sprintf("%d records are too many", n)}
	}
	counts = make(map[[32]uintptr]int64)
	for _, r := range records[:n] {
		if r.AllocObjects == 0 || r.AllocBytes/r.AllocObjects <= size {
			continue
		}
		counts[r.Stack0] += r.AllocObjects
	}
	for _, r := range records[:n] {
		more := counts[r.Stack0] - before[r.Stack0]
		stack := describe(r.Stack())
		if more > 0 && before != nil && !strings.Contains(stack, "largeAllocations") {
			grown = append(grown, fmt.Sprintf("%d times %d bytes\n%s", more, r.AllocBytes/r.AllocObjects, stack))
		}
	}
	return counts, grown
}

func describe(pcs []uintptr) string {
	var b strings.Builder
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		fmt.Fprintf(&b, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}

// TestHeapStaysFlat trains 1,000 steps: neither the live heap nor the number of
// goroutines grows after the first hundred.
func TestHeapStaysFlat(t *testing.T) {
	steps := 1000
	if testing.Short() || raceEnabled {
		steps = 200
	}
	net := mnistNet()
	net.BlockOutChannels = []int{8, 8}
	net.DownBlockTypes = []string{unet.DownBlock2D, unet.DownBlock2D}
	net.UpBlockTypes = []string{unet.UpBlock2D, unet.UpBlock2D}
	net.LayersPerBlock = 1
	net.AddAttention = false
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var early, late runtime.MemStats
	var goroutines int
	train(t, net, 1, 4, steps, func(step int) {
		switch step {
		case 99:
			runtime.GC()
			runtime.ReadMemStats(&early)
			goroutines = runtime.NumGoroutine()
		case steps - 1:
			runtime.GC()
			runtime.ReadMemStats(&late)
			if n := runtime.NumGoroutine(); n > goroutines+1 { // a helper of the kernels
				t.Errorf("%d goroutines after %d steps, %d after 100", n, steps, goroutines)
			}
		}
	})
	if grown := int64(late.HeapAlloc) - int64(early.HeapAlloc); grown > 64<<10 {
		t.Errorf("after %d steps the live heap has %d bytes more than after 100 (%d)", steps, grown, early.HeapAlloc)
	}
}
