package zero

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
)

// seen counts how often each element was shown at each stage, and sums what was.
type seen struct {
	mu     sync.Mutex
	times  map[string][]int
	values map[string][]float64
}

func (s *seen) look(v Sight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%v, micro %d", v.Life, v.Micro)
	if v.Life < LifeFold || v.Life == LifeGather {
		key += fmt.Sprintf(", rank %d", v.Rank)
	}
	if v.Life == LifeNorm || v.Life == LifeClip {
		s.values[key] = append(s.values[key], v.Values.At(0))
		return
	}
	if s.times[key] == nil {
		s.times[key], s.values[key] = make([]int, 1205), make([]float64, 1205)
	}
	if v.Elements.Len() != v.Values.Len() {
		panic(fmt.Sprintf("%d elements, %d values", v.Elements.Len(), v.Values.Len()))
	}
	for i := range v.Values.Len() {
		s.times[key][v.Elements.Lo+i]++
		s.values[key][v.Elements.Lo+i] = v.Values.At(i)
	}
}

// TestProbe: in every way to run, a probe sees each element once at each stage, with
// the value it has there.
func TestProbe(t *testing.T) {
	const world, accum = 2, 4
	grad := exactGrad(world)
	configs := allWays(accum)
	for k := range 12 { // the knobs that allWays leaves alone
		configs = append(configs, config(func(c *Config) {
			c.GradientAccumulationSteps = accum
			z := &c.ZeroOptimization
			z.Stage, z.ReduceBucketSize, z.ReductionOrder = k%3, 131, []string{OrderGlobal, OrderLocal}[k/3%2]
			z.RoundRobinGradients, z.ReduceScatter, z.UseMultiRankBucketAllreduce = k%2 == 0, k%4 < 2, k%5 < 3
		}))
	}
	for k, cfg := range configs {
		if testing.Short() && k%4 != 0 {
			continue
		}
		s := seen{times: map[string][]int{}, values: map[string][]float64{}}
		tr := trial{cfg: cfg, world: world, sizes: fixture, steps: 1, lr: 1, grad: grad, parts: Parts{Probe: s.look}}
		out := tr.must(t)
		sums := make([]float64, 1205)
		for m := range accum {
			for r := range world {
				local := func(i int) float64 { return float64(grad(0, m, r, i)) }
				s.check(t, fmt.Sprintf("local gradient, micro %d, rank %d", m, r), local)
				if !tr.localOrder() {
					s.check(t, fmt.Sprintf("bucket copy, micro %d, rank %d", m, r), local)
					s.check(t, fmt.Sprintf("wire, micro %d, rank %d", m, r), local)
				}
				for i := range sums {
					sums[i] += local(i)
				}
			}
			if !tr.localOrder() || m == accum-1 {
				s.check(t, fmt.Sprintf("fold, micro %d", m), func(i int) float64 { return sums[i] })
			}
		}
		weight := func(i int) float64 { return -sums[i] / (world * accum) }
		s.check(t, "update, micro -1", weight)
		s.check(t, "gather, micro -1, rank 1", weight)
		if n := s.values["norm, micro -1"]; len(n) != world || n[0] != out.results[0].Norm {
			t.Errorf("norms %v, want %v from each rank", n, out.results[0].Norm)
		}
		if n := s.values["clip, micro -1"]; len(n) != world || n[0] != out.results[0].ClipCoefficient {
			t.Errorf("coefficients %v, want %v from each rank", n, out.results[0].ClipCoefficient)
		}
		if t.Failed() {
			t.Fatalf("%+v", cfg)
		}
	}
}

func (tr trial) localOrder() bool {
	z := tr.cfg.ZeroOptimization
	return z.ReductionOrder == OrderLocal && z.Stage < 2
}

func (s *seen) check(t *testing.T, key string, want func(i int) float64) {
	t.Helper()
	for i, n := range s.times[key] {
		if n != 1 || s.values[key][i] != want(i) {
			t.Errorf("%s: element %d was shown %d times, last as %v, want %v once", key, i, n, s.values[key][i], want(i))
			return
		}
	}
	if len(s.times[key]) == 0 {
		t.Errorf("%s: nothing was shown", key)
	}
}

// passing is a route that counts and passes on.
type passing struct {
	next        Route
	took, rests *int
}

func (p passing) Take(ctx context.Context, i int, at Interval, grad []float32) error {
	*p.took++
	return p.next.Take(ctx, i, at, grad)
}

func (p passing) Rest(ctx context.Context) error {
	*p.rests++
	return p.next.Rest(ctx)
}

// TestPartsWrap: pieces that pass everything on change no bit and are asked as often
// as their contracts say; pieces that decide otherwise are obeyed.
func TestPartsWrap(t *testing.T) {
	cfg := config(func(c *Config) {
		c.GradientAccumulationSteps, c.GradientClipping = 2, 1
		c.ZeroOptimization.Stage = 2
	})
	tr := trial{cfg: cfg, world: 2, sizes: fixture, steps: 3, lr: 1, grad: exactGrad(2)}
	plain := tr.must(t)
	var took, rests [2]int
	tr.parts = Parts{
		Names:    []string{"passing"},
		Route:    func(d Desk, own Route) Route { return passing{own, &took[d.Comm.Rank()], &rests[d.Comm.Rank()]} },
		Measurer: func(_ Desk, own Measurer) Measurer { return own },
		Clip:     func(_ Desk, own Clip) Clip { return own },
		Skip:     func(_ Desk, own SkipRule) SkipRule { return own },
	}
	wrapped := tr.must(t)
	if err := sameOutcome(plain, wrapped); err != nil {
		t.Errorf("pieces that pass everything on change the training: %v", err)
	}
	if want := [2]int{3 * 2 * 5, 3 * 2 * 5}; took != want || rests != [2]int{6, 6} {
		t.Errorf("took %v and ended %v, want %v and 6 on each rank", took, rests, want)
	}

	tr.parts = Parts{Clip: func(Desk, Clip) Clip { return func(norm float64) float64 { return 1 / math.Ceil(norm) } }}
	if r := tr.must(t).results[0]; r.ClipCoefficient != 1/math.Ceil(r.Norm) {
		t.Errorf("coefficient %v at norm %v: the clip of the parts was not asked", r.ClipCoefficient, r.Norm)
	}
	tr.parts = Parts{Skip: func(Desk, SkipRule) SkipRule { return func(m Measure) bool { return m.Norm > 0 } }}
	for _, r := range tr.must(t).results {
		if r.Applied {
			t.Errorf("step %d was applied: the rule of the parts was not asked", r.Step)
		}
	}
}

// TestPartsRefused: the ranks compare their parts, and a route has no place in
// "local" order.
func TestPartsRefused(t *testing.T) {
	tr := trial{cfg: config(nil), world: 2, sizes: fixture, steps: 1, grad: exactGrad(2)}
	tr.cfg.ZeroOptimization.ReductionOrder = OrderLocal
	tr.parts = Parts{Names: []string{"other"}, Route: func(_ Desk, own Route) Route { return own }}
	_, errs := tr.run(t)
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "reduction_order") || !strings.Contains(err.Error(), "other") {
			t.Errorf("rank %d: %v, want an error that names the key and the part", r, err)
		}
	}
}
