package cases

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// Section F: memory.

// TestE34Buckets: buffers follow the model, however large the bucket size says
// (DeepSpeed #1302, #4875).
func TestE34Buckets(t *testing.T) {
	const elements = 1000
	for _, cfg := range allConfigs(func(c *zero.Config) { c.BF16.Enabled = true; c.ZeroOptimization.ReduceBucketSize = 5e8 }) {
		cfg.CommunicationDataType = ""
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		out := training{cfg: cfg, world: 1, sizes: []int{400, 600}, grad: constant(1)}.must(t)
		runtime.ReadMemStats(&after)
		for r, m := range out.peak {
			limit := int64(2 * elements * 2)
			if !cfg.ZeroOptimization.ReduceScatter {
				limit += elements * 4 // the sum of a whole bucket
			}
			if m.Buckets > limit {
				t.Errorf("stage %d: rank %d has %d bytes of buckets for %d elements in bf16, want at most %d", cfg.ZeroOptimization.Stage, r, m.Buckets, elements, limit)
			}
		}
		// Whatever is counted or not: the process cannot have made a buffer of 5e8.
		if d := after.TotalAlloc - before.TotalAlloc; d > 4<<20 {
			t.Errorf("stage %d: %d bytes were allocated for a model of %d elements", cfg.ZeroOptimization.Stage, d, elements)
		}
	}
}

// TestE34Stages: what a rank holds of gradients, at its peak, with a million
// elements on four ranks: stage 2 its quarter and the buckets, stage 1 its whole
// local gradient.
func TestE34Stages(t *testing.T) {
	const world, bucket = 4, 10_000
	elements := 1_000_000
	if testing.Short() {
		elements /= 5
	}
	largest := elements * 3 / 10
	sizes := []int{largest, 5, elements/5 - 5, elements / 4, elements / 4}
	for _, overlap := range []bool{false, true} {
		peak := map[int]int64{}
		for stage := range 3 {
			cfg := config(func(c *zero.Config) {
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = overlap
				c.ZeroOptimization.ReduceBucketSize = bucket
			})
			out := training{cfg: cfg, world: world, sizes: sizes, grad: constant(1)}.must(t)
			for r, m := range out.peak {
				live := m.Gradients + m.Accumulators + m.Buckets
				peak[stage] = max(peak[stage], live)
				if predicted := out.plan.Memory(r, zero.SGD{}, true); m != predicted {
					t.Errorf("stage %d: rank %d has %+v, predicted %+v", stage, r, m, predicted)
				}
			}
		}
		if limit := int64(elements/world*4 + 2*bucket*2 + 4*largest + 1<<20); peak[2] > limit {
			t.Errorf("stage 2: %d bytes of gradients, want at most %d", peak[2], limit)
		}
		// Without what the model's own backward holds it is a quarter, and two buckets.
		if limit := int64(elements/world*4 + 2*bucket*2 + 4096); peak[2] > limit {
			t.Errorf("stage 2: the optimizer holds %d bytes of gradients, want at most %d", peak[2], limit)
		}
		if peak[1] < int64(elements*2) {
			t.Errorf("stage 1: %d bytes of gradients, want at least %d", peak[1], elements*2)
		}
		if peak[0] < int64(elements*4) {
			t.Errorf("stage 0: %d bytes of gradients, want at least %d", peak[0], elements*4)
		}
	}
}

// session is a training of a small network that can be stepped.
type session struct {
	comms   []comm.Communicator
	engines []*engine.Engine
	nets    []network
	steps   int
}

func newSession(stage int) (*session, error) {
	s := &session{comms: local.New(2), engines: make([]*engine.Engine, 2), nets: make([]network, 2)}
	cfg := config(func(c *zero.Config) {
		c.BF16.Enabled = true
		c.GradientAccumulationSteps = 2
		c.ZeroOptimization.Stage = stage
		c.ZeroOptimization.OverlapComm = true
		c.ZeroOptimization.ReduceBucketSize = 5000
	})
	return s, s.each(func(r int) (err error) {
		if s.nets[r], err = newUNetwork(framework.ModeReentrant, 2); err != nil {
			return err
		}
		s.engines[r], err = engine.New(context.Background(), s.nets[r], cfg, zero.Constant{Rate: 1e-3}, zero.DefaultAdamW(), s.comms[r])
		return err
	})
}

func (s *session) each(f func(r int) error) error {
	errs := make([]error, len(s.comms))
	var wg sync.WaitGroup
	for r := range s.comms {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *session) step() error {
	defer func() { s.steps++ }()
	return s.each(func(r int) error {
		for m := range 2 {
			loss, err := s.nets[r].Loss(s.engines[r].Tape(), s.steps, m, r, 2)
			if err != nil {
				return err
			}
			if err := s.engines[r].Backward(context.Background(), loss); err != nil {
				return err
			}
		}
		_, err := s.engines[r].Step(context.Background())
		return err
	})
}

func (s *session) close() error {
	return s.each(func(r int) error { return errors.Join(s.engines[r].Close(), s.comms[r].Close()) })
}

// heap returns the bytes in use after a collection, and the goroutines.
func heap() (inUse int64, goroutines int) {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse), runtime.NumGoroutine()
}

// TestE34SteadyState: memory and goroutines are the same after the three hundredth
// step as after the fiftieth (DeepSpeed #5143, #4856, Megatron-LM #4940).
func TestE34SteadyState(t *testing.T) {
	warm, steps := 50, 300
	if testing.Short() {
		warm, steps = 10, 30
	}
	s, err := newSession(2)
	if err != nil {
		t.Fatal(err)
	}
	for range warm {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	before, goroutines := heap()
	for range steps {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	after, now := heap()
	if grown := after - before; grown >= 256<<10 {
		t.Errorf("%d steps grew the heap by %d bytes", steps, grown)
	}
	if now != goroutines {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

// TestE34Close: Close gives everything back (DeepSpeed #5496).
func TestE34Close(t *testing.T) {
	one := func(stage int) {
		s, err := newSession(stage)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.step(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
	for stage := range 3 {
		one(stage)
	}
	before, goroutines := heap()
	for n := range 20 {
		one(n % 3)
	}
	after, now := heap()
	if grown := after - before; grown >= 256<<10 {
		t.Errorf("20 trainings grew the heap by %d bytes", grown)
	}
	if now != goroutines {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
}
