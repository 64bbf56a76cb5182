package compare

import "math"

// Facts are what a table says of one run's series.
type Facts struct {
	Rows int
	Last float64 // the last value
	Tail float64 // the mean of the finite ones among the last twentieth, at least one
	Min  float64 // the smallest finite value

	// NotFinite is the step of the first value that is not finite, and Differs that
	// of the first value that is not the same number as the first run's at that step;
	// NaN where there is none. Only steps that both have are compared: Compared
	// counts them.
	NotFinite, Differs float64
	Compared           int
}

// Examine returns the facts of s, beside first, which may be nil.
func Examine(s, first *Series) Facts {
	f := Facts{Rows: len(s.X), Last: math.NaN(), Tail: math.NaN(), Min: math.NaN(), NotFinite: math.NaN(), Differs: math.NaN()}
	for i, y := range s.Y {
		switch {
		case math.IsNaN(y) || math.IsInf(y, 0):
			if math.IsNaN(f.NotFinite) {
				f.NotFinite = s.X[i]
			}
		case !(f.Min <= y):
			f.Min = y
		}
	}
	if f.Rows > 0 {
		f.Last = s.Y[f.Rows-1]
		f.Tail = mean(s.Y[f.Rows-max(1, f.Rows/20):])
	}
	if first != nil {
		f.compare(s, first)
	}
	return f
}

func mean(y []float64) float64 {
	var sum float64
	n := 0
	for _, v := range y {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			sum += v
			n++
		}
	}
	return sum / float64(n) // NaN for none
}

func (f *Facts) compare(s, first *Series) {
	for i, j := 0, 0; i < len(s.X) && j < len(first.X); {
		switch {
		case s.X[i] < first.X[j]:
			i++
		case s.X[i] > first.X[j]:
			j++
		default:
			f.Compared++
			a, b := s.Y[i], first.Y[j]
			same := a == b || math.IsNaN(a) && math.IsNaN(b)
			if !same && math.IsNaN(f.Differs) {
				f.Differs = s.X[i]
			}
			i++
			j++
		}
	}
}
