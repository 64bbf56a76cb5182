package kernel

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// storedCase runs a kernel on operands in their own formats, and on whole widened
// copies whose result is rounded at the end.
type storedCase struct {
	name          string
	stored, whole func(r *storedRun)
}

// storedRun has the operands of one run: two inputs, an output with previous
// contents and outputs in float32.
type storedRun struct {
	a, b, y dtype.Buffer
	params  [2][]float32
	stats   [2][]float64
}

func asFloat32(b dtype.Buffer) []float32 {
	v := make([]float32, b.Len())
	Widen(v, b)
	return v
}

// onWhole runs f on the widened output and rounds it.
func (r *storedRun) onWhole(f func(y, a, b []float32)) {
	y := asFloat32(r.y)
	f(y, asFloat32(r.a), asFloat32(r.b))
	Round(r.y, y)
}

// Shape of the cases: planes of more than one strip, and a number of channels
// that is no multiple of any vector.
const (
	storedN, storedC, storedHW, storedGroups = 2, 9, 47 * 47, 3
	storedLen                                = storedN * storedC * storedHW
)

func storedCases() []storedCase {
	gamma, beta := newSpans(storedC, 1, false).a, newSpans(storedC, 1, false).b
	channel := newSpans(storedN*storedC, 1, false).a
	cases := []storedCase{
		{"SiLU", func(r *storedRun) { SiLUStored(r.y, r.a) },
			func(r *storedRun) { r.onWhole(func(y, a, b []float32) { SiLU(y, a) }) }},
		{"Add", func(r *storedRun) { AddStored(r.y, r.a, r.b) },
			func(r *storedRun) { r.onWhole(func(y, a, b []float32) { Add(y, a, b) }) }},
		{"AddChannel", func(r *storedRun) { AddChannelStored(r.y, r.a, channel, storedN, storedC, storedHW) },
			func(r *storedRun) {
				r.onWhole(func(y, a, b []float32) { AddChannel(y, a, channel, storedN, storedC, storedHW) })
			}},
		{"GroupNorm", func(r *storedRun) {
			GroupNormStored(r.y, r.a, gamma, beta, storedN, storedC, storedHW, storedGroups, 1e-5, r.stats[0], r.stats[1])
		}, func(r *storedRun) {
			r.onWhole(func(y, a, b []float32) {
				GroupNorm(y, a, gamma, beta, storedN, storedC, storedHW, storedGroups, 1e-5, r.stats[0], r.stats[1])
			})
		}},
	}
	cases = append(cases, storedCase{"GroupNormSiLU", func(r *storedRun) {
		GroupNormSiLUStored(r.y, r.a, gamma, beta, storedN, storedC, storedHW, storedGroups, 1e-5, r.stats[0], r.stats[1])
	}, func(r *storedRun) {
		r.onWhole(func(y, a, b []float32) { SiLU(y, r.normalised(r.y.DType, a, gamma, beta)) })
	}})
	for _, acc := range []bool{false, true} {
		cases = append(cases, accumulatingCases(acc, gamma)...)
		cases = append(cases, groupNormSiLUBackwardCase(acc, gamma, beta))
	}
	return cases
}

// normalised returns the group norm of a as it reads when it was stored in format d.
func (r *storedRun) normalised(d dtype.DType, a, gamma, beta []float32) []float32 {
	v := make([]float32, len(a))
	GroupNorm(v, a, gamma, beta, storedN, storedC, storedHW, storedGroups, 1e-5, r.stats[0], r.stats[1])
	return asFloat32(rounded(d, v))
}

// groupNormSiLUBackwardCase holds the fused gradient against those of the two
// operations, with the gradient between them stored.
func groupNormSiLUBackwardCase(acc bool, gamma, beta []float32) storedCase {
	return storedCase{fmt.Sprintf("GroupNormSiLUBackward/acc=%v", acc), func(r *storedRun) {
		r.normalised(r.b.DType, asFloat32(r.a), gamma, beta) // for mean and rstd
		GroupNormSiLUBackwardStored(r.y, r.params[0], r.params[1], r.a, gamma, beta, r.b, storedN, storedC, storedHW, storedGroups, r.stats[0], r.stats[1], acc, acc)
	}, func(r *storedRun) {
		r.onWhole(func(y, a, b []float32) {
			g := r.normalised(r.b.DType, a, gamma, beta)
			SiLUBackward(g, g, b, false)
			g = asFloat32(rounded(r.b.DType, g))
			GroupNormBackward(y, r.params[0], r.params[1], a, gamma, g, storedN, storedC, storedHW, storedGroups, r.stats[0], r.stats[1], acc, acc)
		})
	}}
}

func accumulatingCases(acc bool, gamma []float32) []storedCase {
	const half = storedLen / 2
	mean, rstd := make([]float64, storedN*storedGroups), make([]float64, storedN*storedGroups)
	for i := range mean {
		mean[i], rstd[i] = float64(i)/7, 1+float64(i)/3
	}
	name := func(s string) string { return fmt.Sprintf("%s/acc=%v", s, acc) }
	return []storedCase{
		{name("SiLUBackward"), func(r *storedRun) { SiLUBackwardStored(r.y, r.a, r.b, acc) },
			func(r *storedRun) { r.onWhole(func(y, a, b []float32) { SiLUBackward(y, a, b, acc) }) }},
		{name("SumChannel"), func(r *storedRun) {
			SumChannelStored(r.params[0][:storedN*storedC], r.a, storedN, storedC, storedHW, acc)
		},
			func(r *storedRun) {
				SumChannel(r.params[0][:storedN*storedC], asFloat32(r.a), storedN, storedC, storedHW, acc)
			}},
		{name("CopyBlocks"), func(r *storedRun) { CopyBlocksStored(r.y.Slice(5, storedLen), half, r.a, half-9, 2, half-11, acc) },
			func(r *storedRun) {
				r.onWhole(func(y, a, b []float32) { CopyBlocks(y[5:], half, a, half-9, 2, half-11, acc) })
			}},
		{name("GroupNormBackward"), func(r *storedRun) {
			GroupNormBackwardStored(r.y, r.params[0], r.params[1], r.a, gamma, r.b, storedN, storedC, storedHW, storedGroups, mean, rstd, acc, acc)
		}, func(r *storedRun) {
			r.onWhole(func(y, a, b []float32) {
				GroupNormBackward(y, r.params[0], r.params[1], a, gamma, b, storedN, storedC, storedHW, storedGroups, mean, rstd, acc, acc)
			})
		}},
	}
}

func newStoredRun(a, b, y dtype.DType) *storedRun {
	p := newSpans(storedLen, 0, false)
	r := &storedRun{a: rounded(a, p.a), b: rounded(b, p.b), y: rounded(y, p.c)}
	for i := range r.params {
		r.params[i] = newSpans(storedC, i, false).d
		r.stats[i] = make([]float64, storedN*storedGroups)
	}
	r.params[0] = append(r.params[0], newSpans(storedC, 2, false).a...)
	return r
}

func (r *storedRun) results() [][]float32 {
	return [][]float32{asFloat32(r.y), r.params[0], r.params[1], narrow32(r.stats[0]), narrow32(r.stats[1])}
}

// TestStoredIsWidenKernelRound compares bits for all formats and some mixtures.
func TestStoredIsWidenKernelRound(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 3} {
		runtime.GOMAXPROCS(procs)
		for _, c := range storedCases() {
			for _, f := range [][3]dtype.DType{
				{dtype.F32, dtype.F32, dtype.F32}, {dtype.BF16, dtype.BF16, dtype.BF16}, {dtype.F16, dtype.F16, dtype.F16},
				{dtype.F32, dtype.BF16, dtype.BF16}, {dtype.BF16, dtype.F16, dtype.F32},
			} {
				got, want := newStoredRun(f[0], f[1], f[2]), newStoredRun(f[0], f[1], f[2])
				if c.name[0] == 'G' { // as many parameters as channels
					got.params[0], want.params[0] = got.params[0][:storedC], want.params[0][:storedC]
				}
				c.stored(got)
				c.whole(want)
				if k, i, bad := differ(got.results(), want.results()); bad {
					t.Errorf("%s of %v, GOMAXPROCS %d: output %d[%d] differs", c.name, f, procs, k, i)
				}
			}
		}
	}
}

func TestUpsampleStored(t *testing.T) {
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		for _, s := range [][4]int{{3, 5, 6, 10}, {4, 4, 7, 9}, {2, 3, 2, 3}} {
			x := rounded(d, newSpans(6*s[0]*s[1], 0, false).a)
			y, want := dtype.Make(d, 6*s[2]*s[3]), make([]float32, 6*s[2]*s[3])
			UpsampleNearestStored(y, x, 6, s[0], s[1], s[2], s[3])
			UpsampleNearest(want, asFloat32(x), 6, s[0], s[1], s[2], s[3])
			if _, i, bad := differ([][]float32{asFloat32(y)}, [][]float32{want}); bad {
				t.Errorf("%s %v: element %d differs", d, s, i)
			}
		}
	}
}

// TestConvStored compares bits with the convolution of widened copies.
func TestConvStored(t *testing.T) {
	for _, s := range convCases() {
		for _, d := range []dtype.DType{dtype.BF16, dtype.F16, dtype.F32} {
			v := newConv(s, draw[float32])
			x, dy := rounded(d, v.x), rounded(d, v.dy)
			y, plain := rounded(d, v.dy), make([]float32, dy.Len())
			ConvForwardStored(s, x, v.w, v.bias, y)
			ConvForward(s, asFloat32(x), v.w, v.bias, plain)
			want := rounded(d, plain)
			if _, i, bad := differ([][]float32{asFloat32(y)}, [][]float32{asFloat32(want)}); bad {
				t.Errorf("%+v forward, %s: element %d differs", s, d, i)
			}
			for _, acc := range []bool{false, true} {
				testConvBackwardStored(t, v, x, dy, acc)
			}
		}
	}
}

func testConvBackwardStored(t *testing.T, v convData[float32], x, dy dtype.Buffer, acc bool) {
	dw, wantW := clone(v.dwOld), clone(v.dwOld)
	ConvBackwardWeightStored(v.s, x, dy, dw, acc)
	ConvBackwardWeight(v.s, asFloat32(x), asFloat32(dy), wantW, nil, acc)
	if _, i, bad := differ([][]float32{dw}, [][]float32{wantW}); bad {
		t.Errorf("%+v weight, %s, acc %v: element %d differs", v.s, x.DType, acc, i)
	}
	if v.s.Stride > 1 {
		return
	}
	dx := rounded(x.DType, v.dxOld)
	plain := asFloat32(dx)
	ConvBackwardInputStored(v.s, v.w, dy, dx, acc)
	ConvBackwardInput(v.s, v.w, asFloat32(dy), plain, acc)
	if _, i, bad := differ([][]float32{asFloat32(dx)}, [][]float32{asFloat32(rounded(x.DType, plain))}); bad {
		t.Errorf("%+v input, %s, acc %v: element %d differs", v.s, x.DType, acc, i)
	}
}
