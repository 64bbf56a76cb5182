package bisect_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/bisect"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// params are two parameters of 5 and 300 elements.
func params() []zero.Param {
	return []zero.Param{
		{Name: "a", Shape: []int{5}, Init: make([]float32, 5)},
		{Name: "b", Shape: []int{10, 30}, Init: make([]float32, 300)},
	}
}

// training trains params by SGD. grad is the gradient of an element in global
// micro-batch g of a step, from 1.
func training(t *testing.T, name string, world, accum int, grad func(step, g, i int) float32) bisect.Training {
	t.Helper()
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = accum
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.ReduceBucketSize = 70 * world // other pieces at each world size
	plan, err := zero.NewPlan(params(), cfg, world)
	if err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, probe zero.Probe, gate bisect.Gate) error {
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		return local.Run(ctx, world, func(ctx context.Context, c comm.Communicator) (err error) {
			defer func() {
				if err != nil {
					cancel(err)
				}
			}()
			o, err := zero.Parts{Probe: probe}.New(ctx, params(), cfg, c, zero.SGD{})
			if err != nil {
				return err
			}
			defer o.Close()
			for step := 1; ; step++ {
				for m := range accum {
					lo := 0
					for i, n := range []int{5, 300} {
						g := make([]float32, n)
						for j := range g {
							g[j] = grad(step, m*world+c.Rank(), lo+j)
							if g[j] == broken {
								return errBroken
							}
						}
						lo += n
						if err := o.GradReady(ctx, i, g); err != nil {
							return err
						}
					}
					if err := o.EndBackward(ctx); err != nil {
						return err
					}
				}
				if _, err := o.Step(ctx, 0.5); err != nil {
					return err
				}
				if err := gate(waiting, step); err != nil {
					return err
				}
			}
		}, local.WithTimeout(3*time.Second))
	}
	return bisect.Training{Name: name, Plan: plan, Config: cfg, Run: run}
}

// broken makes a training fail.
const broken = float32(12345)

var errBroken = errors.New("broke")

func right(step, g, i int) float32 { return float32((7*i + 3*g + step) % 17) }

// TestEqual: the world size and the buckets make no difference.
func TestEqual(t *testing.T) {
	r, err := bisect.Compare(context.Background(), training(t, "one", 1, 4, right), training(t, "four", 4, 1, right), 5)
	if err != nil || r.First != nil || r.Steps != 5 || r.Compared < 5*8 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestFirst: of several differences the first is found, with all that names it, at any
// pair of world sizes.
func TestFirst(t *testing.T) {
	wrong := func(step, g, i int) float32 {
		if step > 3 || step == 3 && (g == 3 || g == 2 && i >= 7) {
			return right(step, g, i) + 1
		}
		return right(step, g, i)
	}
	for _, worlds := range [][2]int{{2, 2}, {1, 2}, {4, 2}, {2, 4}} {
		a, b := training(t, "a", worlds[0], 4/worlds[0], right), training(t, "b", worlds[1], 4/worlds[1], wrong)
		r, err := bisect.Compare(context.Background(), a, b, 10)
		if err != nil || r.First == nil {
			t.Fatalf("worlds %v: %+v, %v", worlds, r, err)
		}
		d := r.First
		if d.Step != 3 || d.Life != zero.LifeLocal || r.Steps != 2 {
			t.Errorf("worlds %v: %v after %d steps", worlds, d, r.Steps)
		}
		// Where micro-batches 2 and 3 belong to one micro-step of the larger world, the
		// lowest element is of batch 3.
		if g := d.Micro*worlds[0] + d.Rank; g == 2 && (d.Param != "b" || d.Offset != 2) || g == 3 && (d.Param != "a" || d.Offset != 0) {
			t.Errorf("worlds %v: %v", worlds, d)
		}
		if d.B != d.A+1 {
			t.Errorf("worlds %v: values %v and %v", worlds, d.A, d.B)
		}
	}
}

// TestNoHang: a training that fails, on one rank, ends the other and is named; one that
// does something else each time is found out.
func TestNoHang(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	failing := func(step, g, i int) float32 {
		if step == 2 && g == 1 {
			return broken
		}
		return right(step, g, i)
	}
	_, err := bisect.Compare(ctx, training(t, "a", 2, 2, right), training(t, "b", 2, 2, failing), 5)
	if err == nil || !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "step 2: b ended, and a did not") {
		t.Errorf("error %v", err)
	}
	_, err = bisect.Compare(ctx, training(t, "a", 2, 2, failing), training(t, "b", 2, 2, failing), 5)
	if !errors.Is(err, errBroken) {
		t.Errorf("both fail: %v", err)
	}
	var calls atomic.Int64
	fickle := func(step, g, i int) float32 {
		if step == 2 && g == 1 && i == 9 && calls.Add(1) == 1 {
			return 100
		}
		return right(step, g, i)
	}
	_, err = bisect.Compare(ctx, training(t, "a", 2, 2, right), training(t, "b", 2, 2, fickle), 5)
	if err == nil || !strings.Contains(err.Error(), "not repeatable") {
		t.Errorf("a training that is not repeatable: %v", err)
	}
}

// TestRecorded: what was recorded is compared by name, within the tolerance, and what is
// missing is named.
func TestRecorded(t *testing.T) {
	tr := training(t, "a", 2, 1, right)
	dir := t.TempDir()
	shapes := [][]int{{5}, {10, 30}}
	have := [][]float32{make([]float32, 305), make([]float32, 305)}
	for r, g := range have {
		for i := range g {
			g[i] = 1 + float32(i)/100
		}
		off := append([]float32(nil), g...)
		if r == 1 {
			off[10] *= 1 + 1e-5
		}
		if err := bisect.Record(dir, 1, r, tr.Plan, shapes, off); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := bisect.OpenRecorded(dir, tr.Plan, 2)
	if err != nil || rec.Last() != 1 {
		t.Fatalf("%v, %v", rec, err)
	}
	if m, err := rec.Compare(1, have, 1e-4); m != nil || err != nil {
		t.Errorf("within the tolerance: %v, %v", m, err)
	}
	m, err := rec.Compare(1, have, 1e-6)
	if err != nil || m == nil || m.Rank != 1 || m.Param != "b" || m.Offset != 5 || m.Count != 1 || math.Abs(m.Want/m.Have-1) > 2e-5 {
		t.Errorf("beyond the tolerance: %v, %v", m, err)
	}
	// A parameter that was not recorded had no gradient.
	path := filepath.Join(dir, "step-1", "rank-0.safetensors")
	if err := safetensors.Write(path, []safetensors.Tensor{{Name: "a", Shape: []int{5}, Data: have[0][:5]}}, nil); err != nil {
		t.Fatal(err)
	}
	if m, err = rec.Compare(1, have, 1e-4); err != nil || m == nil || m.Rank != 0 || m.Param != "b" || m.Absent != 1 || m.Params != 1 || m.Of != 2 {
		t.Errorf("a parameter is missing: %v, %v", m, err)
	}
	if err := os.WriteFile(path, []byte("nothing"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := rec.Compare(1, have, 0); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}
