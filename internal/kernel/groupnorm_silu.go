package kernel

import "github.com/zerogap/zerogap/dtype"

// GroupNormSiLUStored writes SiLU(GroupNorm(x)) into y: the bits of
// [GroupNormStored] followed by [SiLUStored], whose intermediate tensor is rounded
// to the format of y but never reaches memory. mean and rstd are outputs as in
// [GroupNorm].
func GroupNormSiLUStored(y, x dtype.Buffer, gamma, beta []float32, n, c, hw, groups int, eps float64, mean, rstd []float64) {
	checkGroups("GroupNormSiLUStored", c, groups)
	checkStored("GroupNormSiLUStored", n*c*hw, y, x)
	checkLen("GroupNormSiLUStored", c, len(gamma), len(beta))
	checkLen("GroupNormSiLUStored", n*groups, len(mean), len(rstd))
	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(4*size), func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for i := lo; i < hi; i++ {
			at, first := i*size, i%groups*per
			v := s.write(0, y, at, at+size, false)
			mean[i], rstd[i] = normalize(v, s.read(1, x, at, at+size), gamma[first:][:per], beta[first:][:per], eps)
			s.roundTrip(y.DType, v)
			siluSpan(v, v)
			s.commit(y, at, v)
		}
	})
}

// GroupNormSiLUBackwardStored is the gradient of [GroupNormSiLUStored] for the mean
// and rstd that it left: the bits of [SiLUBackwardStored] followed by
// [GroupNormBackwardStored]. The normalised values are computed again; they and their
// gradient have the format of dy. The other arguments are those of
// [GroupNormBackwardStored].
func GroupNormSiLUBackwardStored(dx dtype.Buffer, dgamma, dbeta []float32, x dtype.Buffer, gamma, beta []float32, dy dtype.Buffer, n, c, hw, groups int, mean, rstd []float64, acc, accParam bool) {
	checkGroups("GroupNormSiLUBackwardStored", c, groups)
	checkStored("GroupNormSiLUBackwardStored", n*c*hw, x, dy)
	checkLen("GroupNormSiLUBackwardStored", c, len(gamma), len(beta))
	checkLen("GroupNormSiLUBackwardStored", n*groups, len(mean), len(rstd))
	checkOutput("GroupNormSiLUBackwardStored", c, dgamma)
	checkOutput("GroupNormSiLUBackwardStored", c, dbeta)
	wanted := dx.Len() > 0
	if wanted {
		checkStored("GroupNormSiLUBackwardStored", n*c*hw, dx)
	}
	sums := getPlaneSums(n * c)
	defer planeSums.put(sums)
	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(6*size), func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for i := lo; i < hi; i++ {
			at, first, group := i*size, i%groups*per, (*sums)[i*per:][:per]
			x := s.read(0, x, at, at+size)
			// g is the normalised x, then its gradient.
			g := grow(&s.bufs[3], size)
			affineGroup(g, x, gamma[first:][:per], beta[first:][:per], mean[i], rstd[i])
			s.roundTrip(dy.DType, g)
			siluBackwardSpan(g, g, s.read(1, dy, at, at+size), false)
			s.roundTrip(dy.DType, g)
			for k := range group {
				group[k] = sumPlane(x[k*hw:][:hw], g[k*hw:][:hw], mean[i], rstd[i])
			}
			if wanted {
				v := s.write(2, dx, at, at+size, acc)
				groupBackward(v, x, g, gamma[first:][:per], group, mean[i], rstd[i], acc)
				s.commit(dx, at, v)
			}
		}
	})
	sumParams(dgamma, dbeta, *sums, n, c, accParam)
}
