package kernel

import "fmt"

// SumChannel writes the sum of each plane of dy [n, c, hw] into db [n, c], or
// adds it with acc. Sums are in float64, rounded once.
func SumChannel[T Float](db, dy []T, n, c, hw int, acc bool) {
	checkLen("SumChannel", n*c, len(db))
	checkLen("SumChannel", n*c*hw, len(dy))
	Parallel(n*c, grainOf(hw), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			var l lanes
			sum(&l, dy[p*hw:][:hw])
			store(&db[p], l.total(), acc)
		}
	})
}

// columns is the width of the strip of columns that SumRows sums at once: its
// float64 sums stay in the first-level cache.
const columns = 256

// SumRows writes the sum of each column of dy [rows, cols] into db [cols], or
// adds it with acc. Sums are in float64 over ascending rows, rounded once.
func SumRows[T Float](db, dy []T, rows, cols int, acc bool) {
	checkLen("SumRows", cols, len(db))
	checkLen("SumRows", rows*cols, len(dy))
	Parallel(cols, max(16, grainOf(rows)), func(lo, hi int) {
		var sums [columns]float64
		for ; lo < hi; lo += columns {
			width := min(columns, hi-lo)
			s := sums[:width]
			clear(s)
			for r := range rows {
				row := dy[r*cols+lo:][:width]
				for j := addWide32(s, f32(row)); j < width; j++ {
					s[j] += float64(row[j])
				}
			}
			for j, v := range s {
				store(&db[lo+j], v, acc)
			}
		}
	})
}

// mseBlock is the length of the runs that MSE sums separately. It is a constant
// of the arithmetic: changing it changes last bits.
const mseBlock = 4096

// MSE returns the mean of the squares of a - b, in float64: the sum of each run
// of 4096 elements by itself, the runs added in order. It is NaN for no elements.
func MSE[T Float](a, b []T) float64 {
	checkLen("MSE", len(a), len(b))
	sums := make([]float64, (len(a)+mseBlock-1)/mseBlock)
	Parallel(len(sums), 4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			var l lanes
			end := min(len(a), (i+1)*mseBlock)
			a, b := a[i*mseBlock:end], b[i*mseBlock:end]
			for j := squaredError32(&l, f32(a), f32(b)); j < len(a); j++ {
				d := float64(a[j]) - float64(b[j])
				l[j&15] += float64(d * d)
			}
			sums[i] = l.total()
		}
	})
	var total float64
	for _, s := range sums {
		total += s
	}
	return total / float64(len(a))
}

// MSEBackward writes the gradient of g*MSE(a, b) to a, g * 2/len(a) * (a - b),
// into da, or adds it with acc. da may be a or b unless acc.
func MSEBackward[T Float](da, a, b []T, g float64, acc bool) {
	checkLen("MSEBackward", len(da), len(a), len(b))
	f := T(g * 2 / float64(len(a)))
	Parallel(len(da), grain, func(lo, hi int) {
		da, a, b := da[lo:hi], a[lo:hi], b[lo:hi]
		for i := range da {
			d := T(f * (a[i] - b[i]))
			if acc {
				d += da[i]
			}
			da[i] = d
		}
	})
}

// SumSquares writes the sum of squares of block i of x into sums[i], in float64.
// Blocks are of block elements, the last may be short; len(sums) is their
// number. The order of a block's sum depends on its length alone, so a partition
// of x on block borders gives the same sums as the whole.
func SumSquares(sums []float64, x []float32, block int) {
	if block <= 0 || len(sums) != (len(x)+block-1)/block {
		panic(fmt.Sprintf("kernel: SumSquares: %d sums of %d elements in blocks of %d", len(sums), len(x), block))
	}
	Parallel(len(sums), grainOf(block), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			var l lanes
			sumSquares(&l, x[i*block:min(len(x), (i+1)*block)])
			sums[i] = l.total()
		}
	})
}
