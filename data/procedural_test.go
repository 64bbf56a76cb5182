package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"testing"
)

func TestProcedural(t *testing.T) {
	for _, channels := range []int{1, 3} {
		train, heldOut := open(t, Options{Kind: "procedural", ImageSize: 16, Channels: channels})
		if train.Len() != 60_000 || heldOut.Len() != 10_000 {
			t.Errorf("%d and %d pictures", train.Len(), heldOut.Len())
		}
		seen := map[string]bool{}
		labels := make([]int, len(shapes))
		for _, set := range []Dataset{train, heldOut} {
			for i := range 500 {
				x, label := load(t, set, i)
				labels[label]++
				key := fingerprint(x)
				if seen[key] {
					t.Fatalf("picture %d is there twice", i)
				}
				seen[key] = true
				checkDrawing(t, x, i)
			}
		}
		for kind, n := range labels {
			if n < 130 || n > 270 { // 200 expected, standard deviation 13
				t.Errorf("shape %d came %d times of 1000", kind, n)
			}
		}
		again, _ := load(t, train, 7)
		other, _ := open(t, Options{Kind: "procedural", ImageSize: 16, Channels: channels, TrainSamples: 8})
		if x, _ := load(t, other, 7); !slices.Equal(x, again) || other.Len() != 8 {
			t.Error("a picture depends on more than its index")
		}
	}
}

// checkDrawing: a picture has background, a bright shape and soft edges, and is
// within [−1, 1].
func checkDrawing(t *testing.T, x []float32, i int) {
	t.Helper()
	lo, hi, soft := float32(2), float32(-2), 0
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
		if v > -1 {
			soft++
		}
	}
	levels := map[float32]bool{}
	for _, v := range x {
		levels[v] = true
	}
	if lo != -1 || hi < -0.9 || hi > 1 || soft < 4 || soft == len(x) || len(levels) < 4 {
		t.Fatalf("picture %d: values from %v to %v, %d of %d not background, %d levels", i, lo, hi, soft, len(x), len(levels))
	}
}

func fingerprint(x []float32) string {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// TestShapesHaveTheirArea compares the covered area with that of the figure.
func TestShapesHaveTheirArea(t *testing.T) {
	const n = 400
	for kind, want := range []float64{
		math.Pi, math.Pi * (1 - 0.25), 1.7 * 1.7, 2*2*0.6 - 0.6*0.6, 3 * 0.4 * 2,
	} {
		inside := 0
		for k := range n * n {
			x, y := (float64(k%n)+0.5)/n*3-1.5, (float64(k/n)+0.5)/n*3-1.5
			if shapes[kind](x, y) < 0 {
				inside++
			}
		}
		if got := float64(inside) * 9 / (n * n); math.Abs(got-want) > 0.02 {
			t.Errorf("shape %d has area %.3f, want %.3f", kind, got, want)
		}
	}
}

func TestLoadPanicsOnMistakesOfItsCaller(t *testing.T) {
	few, _ := open(t, Options{Kind: "procedural", ImageSize: 8, Channels: 1, TrainSamples: 3})
	dir := t.TempDir()
	writeSet(t, dir, 3, 2, 3)
	files, _ := open(t, Options{Kind: "mnist", Path: dir, ImageSize: 8, Channels: 1, TrainSamples: 2})
	for _, d := range []Dataset{few, files} {
		for _, c := range []struct{ i, n int }{{-1, 64}, {d.Len(), 64}, {0, 63}, {0, 65}} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("no panic for picture %d with %d elements", c.i, c.n)
					}
				}()
				_, _ = d.Load(c.i, make([]float32, c.n))
			}()
		}
	}
}
