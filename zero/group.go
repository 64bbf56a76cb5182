package zero

import (
	"fmt"
	"math"
	"slices"
)

// Group is a set of parameters with hyper-parameters of their own, for instance
// those without weight decay. Groups change nothing else: bits of norm and
// weights are those of one group when the hyper-parameters are.
type Group struct {
	// Rule updates the group's weights; nil is the one given to New.
	Rule Rule
	// LRScale multiplies the learning rate that Step is given; 0 counts as 1.
	LRScale float64
}

// completed fills in what groups leave out, and makes one group where there are
// none.
func completed(groups []Group, rule Rule) ([]Group, error) {
	if len(groups) == 0 {
		groups = []Group{{}}
	}
	groups = slices.Clone(groups)
	for i := range groups {
		g := &groups[i]
		if g.Rule == nil {
			g.Rule = rule
		}
		if g.LRScale == 0 {
			g.LRScale = 1
		}
		if !(g.LRScale > 0) || math.IsInf(g.LRScale, 0) {
			return nil, fmt.Errorf("group %d: LRScale %v: want a positive finite number", i, g.LRScale)
		}
		if g.Rule == nil {
			return nil, fmt.Errorf("group %d has no rule: give it one, or one to New", i)
		}
		if v, ok := g.Rule.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return nil, fmt.Errorf("group %d: %w", i, err)
			}
		}
	}
	return groups, nil
}
