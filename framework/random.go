package framework

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// Purpose names what a random stream is drawn for, so that two uses never share
// numbers: "noise", "timestep", "flip", "order", "dropout", "init:" + name, ....
type Purpose string

// Stream is a sequence of random numbers that is a function of its key alone:
// (seed, step, sample, purpose). Nothing else that happens in a program, such as
// the number of ranks, the order in which samples are computed, or whether a
// segment is computed twice, can change what is drawn.
//
// The generator is PCG-DXSM with 128 bits of state, which start as a hash of the
// key; two keys share a state with probability 2⁻¹²⁸. All methods give the
// same bits on every architecture. A Stream is a value: a copy goes on
// independently from where the original stood. It is not safe for concurrent
// use.
type Stream struct {
	pcg   rand.PCG
	spare float64 // second half of a Box-Muller pair
	held  bool    // spare is still to be given out
}

// NewStream returns the stream of a key: the run's seed, the optimizer step, the
// global sample index (0 where a draw belongs to no sample) and the purpose. It
// does not allocate where the stream stays within the caller.
func NewStream(seed uint64, step, sample int, purpose Purpose) *Stream {
	s := new(Stream)
	s.rekey(seed, step, sample, purpose)
	return s
}

// rekey is apart from NewStream to keep that small enough for the compiler to
// inline, and so for the stream to live on the caller's stack.
func (s *Stream) rekey(seed uint64, step, sample int, purpose Purpose) {
	var k key
	k.absorb(seed)
	k.absorb(uint64(step))
	k.absorb(uint64(sample))
	k.absorb(uint64(len(purpose))) // so that trailing zero bytes count
	for i := 0; i < len(purpose); i += 8 {
		var word uint64
		for j := i; j < min(i+8, len(purpose)); j++ {
			word |= uint64(purpose[j]) << (8 * (j - i))
		}
		k.absorb(word)
	}
	s.pcg.Seed(k.hi, k.lo)
	s.spare, s.held = 0, false
}

// key is a hash of 128 bits. For a fixed state, different words give different
// states; for a fixed word, different states do too.
type key struct{ hi, lo uint64 }

func (k *key) absorb(word uint64) {
	const golden = 0x9e3779b97f4a7c15 // 2⁶⁴ / golden ratio, the increment of SplitMix64
	k.lo = mix((k.lo ^ word) + golden)
	k.hi = mix((k.hi ^ k.lo) + golden)
}

// mix is the output function of SplitMix64 (Steele, Lea, Flood 2014), with
// Stafford's constants: a bijection in which each input bit changes each output
// bit with probability close to one half.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uint64 returns 64 random bits.
func (s *Stream) Uint64() uint64 { return s.pcg.Uint64() }

// Float64 returns a uniform number in [0,1), a multiple of 2⁻⁵³.
func (s *Stream) Float64() float64 { return float64(s.Uint64()>>11) * 0x1p-53 }

// Intn returns a uniform number in [0,n), without bias: multiplication and
// rejection (Lemire 2019). It panics if n is not positive.
func (s *Stream) Intn(n int) int {
	if n <= 0 {
		panic(fmt.Sprintf("framework: Stream.Intn(%d): want at least 1", n))
	}
	hi, lo := bits.Mul64(s.Uint64(), uint64(n))
	if lo < uint64(n) {
		for least := -uint64(n) % uint64(n); lo < least; {
			hi, lo = bits.Mul64(s.Uint64(), uint64(n))
		}
	}
	return int(hi)
}

// Perm returns a uniform permutation of 0, ..., n-1 (Fisher-Yates).
func (s *Stream) Perm(n int) []int {
	p := make([]int, n)
	for i := range p {
		j := s.Intn(i + 1)
		p[i] = p[j]
		p[j] = i
	}
	return p
}

// Norm returns a standard normal number, by Box-Muller in float64: two uniform
// numbers make two normal ones, and the second is kept for the next call. The
// largest absolute value is 8.57, √(2·53·ln 2).
func (s *Stream) Norm() float64 {
	if s.held {
		s.held = false
		return s.spare
	}
	radius := math.Sqrt(-2 * logUnit(1-s.Float64())) // 1-u is in (0,1]: no log of zero
	sin, cos := sincosTurn(s.Float64())
	s.spare, s.held = radius*sin, true
	return radius * cos
}

// FillNorm fills dst with the numbers that Norm would return, rounded to float32.
func (s *Stream) FillNorm(dst []float32) {
	for i := range dst {
		dst[i] = float32(s.Norm())
	}
}

// logUnit returns the natural logarithm of u in (0,1], with an error below
// 5e-16·max(1, |log u|). The math package is not used here because its last bit
// depends on the architecture; every product below is rounded by an explicit
// conversion, which keeps the compiler from fusing it into the addition.
func logUnit(u float64) float64 {
	m, e := math.Frexp(u)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	// log m = 2·artanh(z) with z = (m-1)/(m+1), |z| < 0.172: 12 terms of the series.
	z := (m - 1) / (m + 1)
	zz := float64(z * z)
	sum := 0.0
	for k := 23; k >= 1; k -= 2 {
		sum = float64(sum*zz) + 1/float64(k)
	}
	return float64(float64(e)*math.Ln2) + float64(2*z*sum)
}

// sincosTurn returns the sine and cosine of u turns, for u in [0,1), with an
// error below 6e-16.
func sincosTurn(u float64) (sin, cos float64) {
	// Reduce to x in [-π/4, π/4] around quarter q of the circle; exact but for
	// the one rounding of the product with 2π.
	q := int(4*u + 0.5)
	x := float64((u - float64(q)*0.25) * (2 * math.Pi))
	xx := float64(x * x)
	sin, cos = 1, 1
	for k := 9; k >= 1; k-- { // Taylor series to x¹⁹ and x¹⁸
		n := float64(2 * k)
		sin = 1 - float64(float64(xx/(n*(n+1)))*sin)
		cos = 1 - float64(float64(xx/(n*(n-1)))*cos)
	}
	sin *= x
	switch q & 3 {
	case 1:
		return cos, -sin
	case 2:
		return -sin, -cos
	case 3:
		return -cos, sin
	}
	return sin, cos
}
