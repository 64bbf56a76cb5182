// Package evaluate measures how good a trained diffusion network is: its loss on
// held-out pictures by timestep, how far what it draws is from real pictures, and
// whether it copies pictures it was trained on.
package evaluate

import (
	"math"
	"slices"

	"github.com/zerogap/zerogap/framework"
)

// DefaultBins is how many bins the timesteps are cut into.
const DefaultBins = 10

// Bin is the mean loss of the samples with timesteps in [Lo, Hi).
type Bin struct {
	Lo      int     `json:"lo"`
	Hi      int     `json:"hi"`
	Samples int     `json:"samples"`
	Loss    float64 `json:"loss"` // 0 when there are no samples
}

// Bins cuts the timesteps [0, total) into count equal bins, or total bins when there
// are fewer timesteps, and averages the losses in each.
func Bins(losses []float64, timesteps []int, total, count int) []Bin {
	count = min(count, total)
	bins := make([]Bin, count)
	for i := range bins {
		bins[i].Lo, bins[i].Hi = total*i/count, total*(i+1)/count
	}
	for i, t := range timesteps {
		at := t * count / total // bins of unequal length: at most one too low
		for bins[at].Hi <= t {
			at++
		}
		bins[at].Samples++
		bins[at].Loss += losses[i]
	}
	for i := range bins {
		bins[i].Loss /= float64(max(1, bins[i].Samples))
	}
	return bins
}

// Mean returns the mean, summed in order; NaN without any values.
func Mean(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// SlicedWasserstein returns the sliced 2-Wasserstein distance between two sets of
// pictures, na and nb rows of a and b with size values each:
//
//	sqrt( mean over directions θ of ∫ (Qa(u) − Qb(u))² du )
//
// where Qa is the quantile function of the values ⟨θ, picture⟩ (Bonneel et al. 2015).
// The directions are uniform on the unit sphere, drawn from a stream keyed by seed,
// so that two calls with the same seed use the same ones. The unit is that of the
// pixels: a set moved by the vector v is at about |v|/√size from itself. Sets of
// different sizes are compared as distributions.
func SlicedWasserstein(a, b []float32, na, nb, size, directions int, seed uint64) float64 {
	if na == 0 || nb == 0 {
		return math.NaN()
	}
	theta := make([]float32, size)
	pa, pb := make([]float64, na), make([]float64, nb)
	var sum float64
	for d := range directions {
		framework.NewStream(seed, 0, d, "sliced Wasserstein").FillNorm(theta)
		scale := 1 / math.Sqrt(dot(theta, theta))
		project(pa, a, theta, scale)
		project(pb, b, theta, scale)
		slices.Sort(pa)
		slices.Sort(pb)
		sum += quantileDistance(pa, pb)
	}
	return math.Sqrt(sum / float64(directions))
}

func project(out []float64, x, theta []float32, scale float64) {
	for i := range out {
		out[i] = dot(x[i*len(theta):(i+1)*len(theta)], theta) * scale
	}
}

func dot(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// quantileDistance integrates the squared difference of the quantile functions of two
// sorted samples: both are steps, of width 1/len.
func quantileDistance(a, b []float64) float64 {
	var sum, at float64
	for i, j := 0, 0; i < len(a) && j < len(b); {
		endA, endB := float64(i+1)/float64(len(a)), float64(j+1)/float64(len(b))
		end := min(endA, endB)
		d := a[i] - b[j]
		sum += d * d * (end - at)
		at = end
		// Compared as whole numbers: (i+1)/len(a) = (j+1)/len(b) must move both.
		switch left, right := (i+1)*len(b), (j+1)*len(a); {
		case left == right:
			i++
			j++
		case left < right:
			i++
		default:
			j++
		}
	}
	return sum
}

// Nearest is the picture of a set that is nearest to another one.
type Nearest struct {
	Index    int     `json:"index"`
	Distance float64 `json:"rms"` // root of the mean squared difference of the values
}

// FindNearest returns for each picture in queries, of size values, the nearest of n
// pictures that load brings one by one into its argument. It reads each once.
func FindNearest(queries []float32, size, n int, load func(i int, picture []float32) error) ([]Nearest, error) {
	best := make([]Nearest, len(queries)/size)
	for q := range best {
		best[q] = Nearest{Index: -1, Distance: math.Inf(1)}
	}
	picture := make([]float32, size)
	for i := range n {
		if err := load(i, picture); err != nil {
			return nil, err
		}
		for q := range best {
			limit := best[q].Distance
			if d := squared(queries[q*size:(q+1)*size], picture, limit); d < limit {
				best[q] = Nearest{Index: i, Distance: d}
			}
		}
	}
	for q := range best {
		best[q].Distance = math.Sqrt(best[q].Distance / float64(size))
	}
	return best, nil
}

// squared returns the sum of squared differences, or a partial one above limit.
func squared(a, b []float32, limit float64) float64 {
	const stride = 64
	var sum float64
	for lo := 0; lo < len(a) && sum < limit; lo += stride {
		for i := lo; i < min(lo+stride, len(a)); i++ {
			d := float64(a[i]) - float64(b[i])
			sum += d * d
		}
	}
	return sum
}
