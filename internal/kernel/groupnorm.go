package kernel

import (
	"fmt"
	"math"
)

// GroupNorm normalises each group of channels of each sample and applies the
// affine map of its channel (Wu and He, "Group Normalization", 2018):
//
//	y = (x - mean) * rstd * gamma[c] + beta[c],  rstd = 1/sqrt(var + eps)
//
// with the biased variance. x and y are [n, c, hw], gamma and beta [c]; groups
// divides c. mean and rstd, [n*groups], are outputs for [GroupNormBackward].
// Statistics are in float64. y may be x if no gradient will be asked for.
func GroupNorm[T Float](y, x, gamma, beta []T, n, c, hw, groups int, eps float64, mean, rstd []float64) {
	checkGroups("GroupNorm", c, groups)
	checkLen("GroupNorm", n*c*hw, len(y), len(x))
	checkLen("GroupNorm", c, len(gamma), len(beta))
	checkLen("GroupNorm", n*groups, len(mean), len(rstd))
	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(2*size), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at, first := i*size, i%groups*per
			mean[i], rstd[i] = normalize(y[at:][:size], x[at:][:size], gamma[first:][:per], beta[first:][:per], eps)
		}
	})
}

// normalize is GroupNorm of one group [per, hw].
func normalize[T Float](y, x, gamma, beta []T, eps float64) (mean, rstd float64) {
	mean, variance := moments(x)
	rstd = 1 / math.Sqrt(variance+eps)
	affineGroup(y, x, gamma, beta, mean, rstd)
	return mean, rstd
}

// affineGroup writes the normalised values of one group, given its statistics.
func affineGroup[T Float](y, x, gamma, beta []T, mean, rstd float64) {
	hw := len(x) / len(gamma)
	for k := range gamma {
		// The mean is taken away before the scale is applied, so a mean far from
		// zero costs no accuracy; what rounding it to T left over goes into the
		// bias.
		scale := rstd * float64(gamma[k])
		rest := mean - float64(T(mean))
		bias := float64(beta[k]) - float64(rest*scale)
		affineSpan(y[k*hw:][:hw], x[k*hw:][:hw], T(mean), T(scale), T(bias))
	}
}

func checkGroups(op string, c, groups int) {
	if groups <= 0 || c%groups != 0 {
		panic(fmt.Sprintf("kernel: %s: %d channels in %d groups", op, c, groups))
	}
}

// moments returns mean and biased variance of x in one pass. The sums are of
// x - x[0], which is within sqrt(len(x)) standard deviations of the mean, so the
// difference of squares keeps its accuracy wherever the mean lies.
func moments[T Float](x []T) (mean, variance float64) {
	if len(x) == 0 {
		return 0, 0
	}
	shift := float64(x[0])
	var s, q lanes
	for i := moments32(&s, &q, f32(x), shift); i < len(x); i++ {
		d := float64(x[i]) - shift
		s[i&15] += d
		q[i&15] += float64(d * d)
	}
	m := s.total() / float64(len(x))
	variance = q.total()/float64(len(x)) - float64(m*m)
	// Not max: rounding may leave a tiny negative, but NaN must pass.
	if variance < 0 {
		variance = 0
	}
	return shift + m, variance
}

// GroupNormBackward is the gradient of [GroupNorm] for the mean and rstd that it
// left. With acc, dx is added to; with accParam, dgamma and dbeta are. Each of
// dx, dgamma and dbeta may be nil; dx may be dy unless acc. Sums are in float64:
// over hw per plane first, planes of a channel then in order of n.
func GroupNormBackward[T Float](dx, dgamma, dbeta, x, gamma, dy []T, n, c, hw, groups int, mean, rstd []float64, acc, accParam bool) {
	checkGroups("GroupNormBackward", c, groups)
	checkLen("GroupNormBackward", n*c*hw, len(x), len(dy))
	checkLen("GroupNormBackward", c, len(gamma))
	checkLen("GroupNormBackward", n*groups, len(mean), len(rstd))
	checkOutput("GroupNormBackward", n*c*hw, dx)
	checkOutput("GroupNormBackward", c, dgamma)
	checkOutput("GroupNormBackward", c, dbeta)
	scratch := getPlaneSums(n * c)
	defer planeSums.put(scratch)
	sums := *scratch

	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(3*size), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			first := i % groups * per
			group := sums[i*per:][:per]
			at := i * size
			x, dy := x[at:][:size], dy[at:][:size]
			for k := range group {
				group[k] = sumPlane(x[k*hw:][:hw], dy[k*hw:][:hw], mean[i], rstd[i])
			}
			if dx != nil {
				groupBackward(dx[at:][:size], x, dy, gamma[first:][:per], group, mean[i], rstd[i], acc)
			}
		}
	})
	sumParams(dgamma, dbeta, sums, n, c, accParam)
}

// sumParams writes or adds the sums of the planes of each channel.
func sumParams[T Float](dgamma, dbeta []T, sums []planeSum, n, c int, acc bool) {
	for ch := range c {
		var dg, db float64
		for s := range n {
			dg += sums[s*c+ch].dyxhat
			db += sums[s*c+ch].dy
		}
		if dgamma != nil {
			store(&dgamma[ch], dg, acc)
		}
		if dbeta != nil {
			store(&dbeta[ch], db, acc)
		}
	}
}

// planeSum holds the sums over one plane [hw] of dy and of dy*xhat, where xhat
// is the normalised x.
type planeSum struct{ dy, dyxhat float64 }

// planeSums recycles the [n, c] sums of GroupNormBackward.
var planeSums stock[[]planeSum]

// getPlaneSums returns n sums of arbitrary value.
func getPlaneSums(n int) *[]planeSum {
	s := planeSums.take()
	*s = grow(s, n)
	return s
}

func sumPlane[T Float](x, dy []T, mean, rstd float64) planeSum {
	var a, b lanes
	x = x[:len(dy)]
	for i := planeSum32(&a, &b, f32(x), f32(dy), mean); i < len(dy); i++ {
		g := float64(dy[i])
		a[i&15] += g
		b[i&15] += float64(g * (float64(x[i]) - mean))
	}
	return planeSum{dy: a.total(), dyxhat: b.total() * rstd}
}

// groupBackward writes or adds dx of one group [per, hw]:
//
//	dx = rstd * (gamma*dy - mean(gamma*dy) - xhat * mean(gamma*dy*xhat))
func groupBackward[T Float](dx, x, dy, gamma []T, sums []planeSum, mean, rstd float64, acc bool) {
	var m1, m2 float64
	for k, s := range sums {
		m1 += float64(float64(gamma[k]) * s.dy)
		m2 += float64(float64(gamma[k]) * s.dyxhat)
	}
	m1 /= float64(len(dx))
	m2 /= float64(len(dx))
	slope := -rstd * rstd * m2
	// As in GroupNorm, x - mean is taken with the mean in T and what that
	// rounding leaves goes into the constant.
	offset := -float64(rstd*m1) - float64(slope*(mean-float64(T(mean))))
	hw := len(dx) / len(sums)
	for k := range sums {
		at := k * hw
		normBackwardSpan(dx[at:][:hw], x[at:][:hw], dy[at:][:hw],
			T(mean), T(rstd*float64(gamma[k])), T(slope), T(offset), acc)
	}
}

// normBackwardSpan writes scale*dy + (slope*(x - shift) + offset) into dx, or
// adds it.
func normBackwardSpan[T Float](dx, x, dy []T, shift, scale, slope, offset T, acc bool) {
	i := normBackward32(f32(dx), f32(x), f32(dy), float32(shift), float32(scale), float32(slope), float32(offset), acc)
	for ; i < len(dx); i++ {
		d := T(dy[i]*scale) + (T((x[i]-shift)*slope) + offset)
		if acc {
			d += dx[i]
		}
		dx[i] = d
	}
}
