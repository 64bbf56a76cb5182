package fault

import (
	"fmt"
	"slices"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
)

// Lab is a choice of faults. It is not changed by its methods and may be shared by
// ranks.
type Lab struct {
	names []string
	seed  uint64
	late  float64
	watch func(Strike) // nil for nobody
}

// New returns the laboratory with the faults of these names; none is the correct
// training. seed draws what a race would leave to chance. Errors name what is unknown,
// given twice, or does not go together.
func New(names []string, seed uint64) (*Lab, error) {
	taken := map[piece]string{}
	for i, name := range names {
		c, err := Find(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("fault %q is given twice", name)
		}
		if other := taken[c.piece]; c.piece != free && other != "" {
			return nil, fmt.Errorf("faults %q and %q replace the same piece: choose one", other, name)
		}
		taken[c.piece] = name
	}
	return &Lab{names: slices.Clone(names), seed: seed, late: DefaultLate}, nil
}

// Names returns the names of the chosen faults.
func (l *Lab) Names() []string { return slices.Clone(l.names) }

func (l *Lab) has(name string) bool { return slices.Contains(l.names, name) }

// Rank is what one rank's training is made of.
type Rank struct {
	Parts zero.Parts
	// Hook goes between the tape and the optimizer; nil for none.
	Hook func(next framework.GradHook) framework.GradHook
	// Tape are options of the tape.
	Tape []framework.Option

	skipped bool // this rank skips the running step
	allSkip bool // and so do all others
	lab     *Lab
}

// Rank returns a new set for one rank.
func (l *Lab) Rank() *Rank {
	r := &Rank{lab: l, Parts: zero.Parts{Names: l.Names()}}
	if l.carries() {
		r.Parts.Route = func(d zero.Desk, _ zero.Route) zero.Route { return newCarrier(l, d) }
	}
	l.measurers(&r.Parts)
	r.skipping()
	r.segments()
	return r
}

// Rule returns the rule as the faults use it.
func (r *Rank) Rule(own zero.Rule) zero.Rule {
	if r.lab.has(RankLocalSkip) {
		return halting{own, &r.skipped}
	}
	return own
}

// Schedule returns the noise schedule as the faults use it.
func (l *Lab) Schedule(own *unet.Schedule) (*unet.Schedule, error) {
	if !l.has(ScheduleInBF16) {
		return own, nil
	}
	return inBF16(own)
}
