package kernel

import (
	"fmt"
	"runtime"
)

// Gemm multiplies row-major matrices: c [m,n] = a' [m,k] · b' [k,n], or with acc
// c += a'·b'. a' is a, stored [m,k], or with transA its transpose, stored [k,m];
// b' likewise is b [k,n] or, with transB, stored [n,k]. Element (i,j) of a stored
// matrix x is x[i*ldx+j]. c must not overlap a or b.
//
// Each element of c is a sum over k in one order, cut into the same blocks
// whatever m, n, its place in c and the number of processors are.
func Gemm[T Float](transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, c []T, ldc int, acc bool) {
	checkMatrix("a", len(a), lda, m, k, transA)
	checkMatrix("b", len(b), ldb, k, n, transB)
	checkMatrix("c", len(c), ldc, m, n, false)
	p := product[T]{
		m: m, n: n, k: k,
		a: matrix[T]{a, lda, transA}, b: matrix[T]{b, ldb, transB},
		c: c, ldc: ldc, acc: acc,
	}
	byRows, byCols := grid(workers(m*n*k), side{(m + tileRows - 1) / tileRows, tileRows}, side{(n + tileCols - 1) / tileCols, tileCols})
	Parallel(byRows*byCols, 1, func(lo, hi int) {
		for cell := lo; cell < hi; cell++ {
			i0, i1 := share(m, tileRows, byRows, cell/byCols)
			j0, j1 := share(n, tileCols, byCols, cell%byCols)
			p.compute(i0, i1, j0, j1)
		}
	})
}

// GemmBatch performs count products of the same shape with [Gemm]: product i
// takes a[i*strideA:], b[i*strideB:] and c[i*strideC:]. A stride of zero for a or
// b uses the same matrix for all. Products of one batch must not share elements
// of c.
func GemmBatch[T Float](count int, transA, transB bool, m, n, k int, a []T, lda, strideA int, b []T, ldb, strideB int, c []T, ldc, strideC int, acc bool) {
	one := max(m*n*k, 1)
	if count < runtime.GOMAXPROCS(0) && workers(one) > 1 {
		for i := range count {
			Gemm(transA, transB, m, n, k, a[i*strideA:], lda, b[i*strideB:], ldb, c[i*strideC:], ldc, acc)
		}
		return
	}
	Parallel(count, (minWork+one-1)/one, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			multiplyAlone(transA, transB, m, n, k, a[i*strideA:], lda, b[i*strideB:], ldb, c[i*strideC:], ldc, acc)
		}
	})
}

// multiplyAlone is [Gemm] on this goroutine.
func multiplyAlone[T Float](transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, c []T, ldc int, acc bool) {
	checkMatrix("a", len(a), lda, m, k, transA)
	checkMatrix("b", len(b), ldb, k, n, transB)
	checkMatrix("c", len(c), ldc, m, n, false)
	p := product[T]{
		m: m, n: n, k: k,
		a: matrix[T]{a, lda, transA}, b: matrix[T]{b, ldb, transB},
		c: c, ldc: ldc, acc: acc,
	}
	p.compute(0, m, 0, n)
}

// checkMatrix panics unless a [rows, cols] matrix, stored transposed or not, fits
// into size elements at the leading dimension ld.
func checkMatrix(name string, size, ld, rows, cols int, trans bool) {
	if trans {
		rows, cols = cols, rows
	}
	if rows < 0 || cols < 0 || rows > 0 && cols > 0 && (ld < cols || size < (rows-1)*ld+cols) {
		panic(fmt.Sprintf("kernel: Gemm: %s is %d x %d with leading dimension %d, but has %d elements", name, rows, cols, ld, size))
	}
}

// minWork is the least number of multiplications worth a goroutine: about ten
// microseconds of work.
const minWork = 1 << 18

// workers returns how many goroutines may share the given number of
// multiplications.
func workers(work int) int { return max(1, min(runtime.GOMAXPROCS(0), work/minWork)) }

// side is one dimension of a task that is cut into cells: count units, and what a
// cell pays for each unit of its share that it has to pack.
type side struct{ count, cost int }

func (s side) share(parts int) int { return (s.count + parts - 1) / parts * s.cost }

// grid arranges at most n workers as rows times cols. Among the arrangements
// that use most workers it takes the one in which a cell has least to pack.
func grid(n int, r, c side) (rows, cols int) {
	rows, cols = 1, 1
	for i := 1; i <= min(n, r.count); i++ {
		j := max(1, min(n/i, c.count))
		if i*j > rows*cols || i*j == rows*cols && r.share(i)+c.share(j) < r.share(rows)+c.share(cols) {
			rows, cols = i, j
		}
	}
	return rows, cols
}

// share returns part number i when n elements are cut into parts at multiples of
// unit.
func share(n, unit, parts, i int) (lo, hi int) {
	units := (n + unit - 1) / unit
	return min(n, i*units/parts*unit), min(n, (i+1)*units/parts*unit)
}
