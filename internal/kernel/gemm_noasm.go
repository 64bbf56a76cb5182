//go:build !amd64 || noasm

package kernel

// Without assembly every case is left to plain Go.

const hasWide = false

func multiplyWide32(height, count int, a []float32, off []int, b []float32, at *groups, c []float32, to *groups, ldc int, acc bool, bias []float32) bool {
	return false
}

func multiply32(height, count int, a []float32, off []int, b []float32, bAt [2]int, c []float32, cAt [2]int, ldc int, acc bool, bias []float32) bool {
	return false
}
func gradient32(s pixels, a []float32, off []int, b, c []float32) bool { return false }

func transpose32(dst []float32, width int, src []float32, ld, depth int) int { return 0 }

func copyRuns32(dst []float32, width, step int, src []float32, ld, rows, runs, n int) bool {
	return false
}
func everySecond32(dst, src []float32) int { return 0 }
