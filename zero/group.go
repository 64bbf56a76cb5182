package zero

// Group is a set of parameters with hyper-parameters of their own, for instance
// those without weight decay. Groups change nothing else: bits of norm and
// weights are those of one group when the hyper-parameters are.
type Group struct {
	// Rule updates the group's weights; nil is the one given to New.
	Rule Rule
	// LRScale multiplies the learning rate that Step is given; 0 counts as 1.
	LRScale float64
}
