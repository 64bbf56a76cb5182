package kernel

import "github.com/zerogap/zerogap/dtype"

// GroupNormStored is [GroupNorm]; it widens a group at a time.
func GroupNormStored(y, x dtype.Buffer, gamma, beta []float32, n, c, hw, groups int, eps float64, mean, rstd []float64) {
	checkGroups("GroupNormStored", c, groups)
	checkStored("GroupNormStored", n*c*hw, y, x)
	checkLen("GroupNormStored", c, len(gamma), len(beta))
	checkLen("GroupNormStored", n*groups, len(mean), len(rstd))
	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(2*size), func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for i := lo; i < hi; i++ {
			at, first := i*size, i%groups*per
			v := s.write(0, y, at, at+size, false)
			mean[i], rstd[i] = normalize(v, s.read(1, x, at, at+size), gamma[first:][:per], beta[first:][:per], eps)
			s.commit(y, at, v)
		}
	})
}

// GroupNormBackwardStored is [GroupNormBackward]; dx may be empty instead of nil.
func GroupNormBackwardStored(dx dtype.Buffer, dgamma, dbeta []float32, x dtype.Buffer, gamma []float32, dy dtype.Buffer, n, c, hw, groups int, mean, rstd []float64, acc, accParam bool) {
	checkGroups("GroupNormBackwardStored", c, groups)
	checkStored("GroupNormBackwardStored", n*c*hw, x, dy)
	checkLen("GroupNormBackwardStored", c, len(gamma))
	checkLen("GroupNormBackwardStored", n*groups, len(mean), len(rstd))
	checkOutput("GroupNormBackwardStored", c, dgamma)
	checkOutput("GroupNormBackwardStored", c, dbeta)
	wanted := dx.Len() > 0
	if wanted {
		checkStored("GroupNormBackwardStored", n*c*hw, dx)
	}
	sums := getPlaneSums(n * c)
	defer planeSums.put(sums)
	per := c / groups
	size := per * hw
	Parallel(n*groups, grainOf(3*size), func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for i := lo; i < hi; i++ {
			at, group := i*size, (*sums)[i*per:][:per]
			x, dy := s.read(0, x, at, at+size), s.read(1, dy, at, at+size)
			for k := range group {
				group[k] = sumPlane(x[k*hw:][:hw], dy[k*hw:][:hw], mean[i], rstd[i])
			}
			if wanted {
				v := s.write(2, dx, at, at+size, acc)
				groupBackward(v, x, dy, gamma[i%groups*per:][:per], group, mean[i], rstd[i], acc)
				s.commit(dx, at, v)
			}
		}
	})
	sumParams(dgamma, dbeta, *sums, n, c, accParam)
}
