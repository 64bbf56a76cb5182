//go:build !amd64 || noasm

package kernel

// Without a vector unit every prefix is empty, and the plain loops do it all.

func add32(dst, a, b []float32) int                           { return 0 }
func mul32(dst, a, b []float32) int                           { return 0 }
func mulAccumulate32(dst, a, b []float32) int                 { return 0 }
func scale32(y, x []float32, s float32) int                   { return 0 }
func axpy32(y, x []float32, s float32) int                    { return 0 }
func addScalar32(y, x []float32, s float32) int               { return 0 }
func affine32(y, x []float32, shift, scale, bias float32) int { return 0 }
func scaleBy32(dst []float32, s float64) int                  { return 0 }

func sum32(l *lanes, x []float32) int                           { return 0 }
func sumSquares32(l *lanes, x []float32) int                    { return 0 }
func dot32(l *lanes, a, b []float32) int                        { return 0 }
func squaredError32(l *lanes, a, b []float32) int               { return 0 }
func moments32(s, q *lanes, x []float32, shift float64) int     { return 0 }
func planeSum32(a, b *lanes, x, dy []float32, mean float64) int { return 0 }
func addWide32(sums []float64, x []float32) int                 { return 0 }

func silu32(y, x []float32) int                                                             { return 0 }
func siluBackward32(dx, x, dy []float32, acc bool) int                                      { return 0 }
func scaledMax32(x []float32, scale float32) (int, float32)                                 { return 0, 0 }
func expSum32(l *lanes, y, x []float32, scale, m float32) int                               { return 0 }
func softmaxBackward32(dx, y, dy []float32, d, scale float32) int                           { return 0 }
func normBackward32(dx, x, dy []float32, shift, scale, slope, offset float32, acc bool) int { return 0 }

func widenBF16(dst []float32, src []uint16) int { return 0 }
func widenF16(dst []float32, src []uint16) int  { return 0 }
func roundBF16(dst []uint16, src []float32) int { return 0 }
func roundF16(dst []uint16, src []float32) int  { return 0 }

func foldF32BF16(acc []float32, x []uint16) int { return 0 }
func foldF32F16(acc []float32, x []uint16) int  { return 0 }
func foldBF16BF16(acc, x []uint16) int          { return 0 }
func foldF16F16(acc, x []uint16) int            { return 0 }
func foldBF16F32(acc []uint16, x []float32) int { return 0 }
func foldF16F32(acc []uint16, x []float32) int  { return 0 }

func adamw32(a *adam, w, g, m, v []float32) int { return 0 }
