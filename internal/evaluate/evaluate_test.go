package evaluate

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestBins(t *testing.T) {
	losses, timesteps := []float64{1, 2, 3, 4, 10}, []int{0, 2, 3, 6, 6}
	want := []Bin{{0, 2, 1, 1}, {2, 4, 2, 2.5}, {4, 7, 2, 7}}
	if got := Bins(losses, timesteps, 7, 3); !slices.Equal(got, want) {
		t.Errorf("bins %v, want %v", got, want)
	}
	if got := Bins(losses, timesteps, 7, 10); len(got) != 7 || got[6].Loss != 7 || got[1].Samples != 0 || got[1].Loss != 0 {
		t.Errorf("more bins than timesteps: %v", got)
	}
	// Every timestep of any division is in the bin that names it.
	for total := 1; total < 40; total++ {
		for count := 1; count < 12; count++ {
			var ts []int
			for t := range total {
				ts = append(ts, t)
			}
			for _, b := range Bins(make([]float64, total), ts, total, count) {
				if b.Samples != b.Hi-b.Lo || b.Samples == 0 {
					t.Fatalf("%d timesteps in %d bins: %+v", total, count, b)
				}
			}
		}
	}
}

func TestSlicedWasserstein(t *testing.T) {
	a := []float32{0, 0, 1, 0, 0, 2, 3, 3} // four points of the plane
	near := func(got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got-want) > tolerance {
			t.Errorf("distance %v, want %v", got, want)
		}
	}
	near(SlicedWasserstein(a, []float32{3, 3, 0, 2, 1, 0, 0, 0}, 4, 4, 2, 50, 1), 0, 0) // the same set
	// Each point twice is the same distribution.
	near(SlicedWasserstein(a, slices.Concat(a, a), 4, 8, 2, 50, 1), 0, 1e-7)
	// In one dimension it is the Wasserstein distance itself.
	near(SlicedWasserstein([]float32{0, 1, 3}, []float32{5, 6, 8}, 3, 3, 1, 7, 1), 5, 1e-6)
	near(SlicedWasserstein([]float32{0, 4}, []float32{1}, 2, 1, 1, 7, 1), math.Sqrt((1.0+9.0)/2), 1e-6)
	near(SlicedWasserstein([]float32{0, 3, 6}, []float32{0, 6}, 3, 2, 1, 7, 1), math.Sqrt((9.0+9.0)/6), 1e-6)
	// A set moved by v is at |v|·sqrt(mean cos²) = |v|/√2 in the plane.
	moved := slices.Clone(a)
	for i := range moved {
		moved[i] += []float32{3, 4}[i%2]
	}
	near(SlicedWasserstein(a, moved, 4, 4, 2, 20000, 1), 5/math.Sqrt2, 0.05)
	if !math.IsNaN(SlicedWasserstein(nil, a, 0, 4, 2, 5, 1)) {
		t.Error("the distance from nothing is a number")
	}
}

func TestFindNearest(t *testing.T) {
	const size = 130 // more than one stride
	set := make([][]float32, 5)
	for i := range set {
		set[i] = make([]float32, size)
		for k := range set[i] {
			set[i][k] = float32((i*37+k*11)%13) / 13
		}
	}
	query := slices.Concat(set[3], set[1])
	query[size-1] += 2
	got, err := FindNearest(query, size, len(set), func(i int, p []float32) error { copy(p, set[i]); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []Nearest{{3, 2 / math.Sqrt(size)}, {1, 0}}
	for q := range want {
		if got[q].Index != want[q].Index || math.Abs(got[q].Distance-want[q].Distance) > 1e-6 {
			t.Errorf("query %d: %+v, want %+v", q, got[q], want[q])
		}
	}
	broken := errors.New("broken")
	if _, err := FindNearest(query, size, 1, func(int, []float32) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestMean(t *testing.T) {
	if Mean([]float64{1, 2, 6}) != 3 || !math.IsNaN(Mean(nil)) {
		t.Error("mean")
	}
}
