package main

import (
	"fmt"
	"math"
)

// row is one line of the report, held against what came out.
type row struct {
	what       string // what was reported
	measured   string
	reproduced bool
}

func (r row) verdict() string {
	if r.reproduced {
		return "reproduced"
	}
	return "not reproduced"
}

// stat is a number over seeds.
type stat struct {
	mean, low, high float64
	n               int // seeds that have it
}

func (s stat) String() string {
	switch {
	case s.n == 0:
		return "none"
	case s.n == 1:
		return fmt.Sprintf("%.3f", s.mean)
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", s.mean, s.low, s.high)
}

func over(values []float64) stat {
	s := stat{low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range values {
		if v-v != 0 {
			continue
		}
		s.mean += v
		s.n++
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	s.mean /= float64(max(1, s.n))
	return s
}

// tail is the mean loss of the last fifth of a run, NaN when the run has none.
func (c series) tail(steps int) float64 { return mean(c.loss, steps-steps/5, steps) }

// head is the mean loss of the first quarter.
func (c series) head(steps int) float64 { return mean(c.loss, 0, steps/4) }

func mean(x []float64, lo, hi int) float64 {
	if hi > len(x) || lo >= hi {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range x[lo:hi] {
		sum += v
	}
	return sum / float64(hi-lo)
}

// ratio compares a part of the curves of two variants, seed by seed.
func (g *gap) ratio(name, to string, part func(series) float64) stat {
	var all []float64
	for k := range g.runs[name] {
		all = append(all, part(g.runs[name][k])/part(g.runs[to][k]))
	}
	return over(all)
}

func (g *gap) atEnd(name, to string) stat {
	return g.ratio(name, to, func(c series) float64 { return c.tail(g.steps) })
}

// firstBad returns the range of steps of the first value that is not finite.
func (g *gap) firstBad(name string) (lo, hi, n int) {
	for _, c := range g.runs[name] {
		if c.firstBad == 0 {
			continue
		}
		if n++; n == 1 || c.firstBad < lo {
			lo = c.firstBad
		}
		hi = max(hi, c.firstBad)
	}
	return lo, hi, n
}

// What counts as a difference of losses at the end, in factors: a worse one in all
// seeds, a poor one, one that is several times higher, and two that are alike.
const (
	worse   = 1.02
	poor    = 1.1
	several = 2.0
	alike   = 1.1
)

// rows judges the report line by line.
func (g *gap) rows() []row {
	larger, most, sixtieth := g.atEnd(vLarger, vGood), g.atEnd(vMost, vGood), g.atEnd(vSixtieth, vGood)
	single, stage1 := g.atEnd(vSingle, vGood), g.atEnd(vStage1, vMost)
	early := g.ratio(vLarger, vMost, func(c series) float64 { return c.head(g.steps) })
	non := g.atEnd(vNon, vMost)
	best := g.seeds > 0
	for _, v := range wrongVariants() {
		if v.name != vGood {
			s := g.atEnd(v.name, vGood)
			best = best && (s.n == 0 || s.low > 1)
		}
	}
	lo, hi, bad := g.firstBad(vSmallest)
	every := func(s stat, least float64) bool { return s.n == g.seeds && s.low >= least }
	_, _, lost := g.firstBad(vSixtieth)
	norms, agree := g.judgeNorms()
	return []row{
		{"Stage 1 with fp32 accumulation converges best.", fmt.Sprintf("loss at the end %v; every other run ends above it in every seed: %v", over(g.tails(vGood)), best), best},
		{"Stage 2, bucket 1.67 of the model: worse than stage 1 at the end.", fmt.Sprintf("loss at the end %v times stage 1's", larger), every(larger, worse)},
		{"Stage 2, bucket 1.67: better than bucket 0.83 at first.", fmt.Sprintf("loss in the first quarter %v times that of bucket 0.83", early), early.n == g.seeds && early.high < 1},
		{"Stage 2, bucket 0.83: converges poorly.", fmt.Sprintf("loss at the end %v times stage 1's", most), every(most, poor)},
		{"Stage 2, bucket 1/60: almost does not converge, losses several times higher.", fmt.Sprintf("loss at the end %v times stage 1's; not finite in %d of %d seeds", sixtieth, lost, g.seeds), every(sixtieth, several)},
		{"Stage 2, bucket 1/600: NaN almost at once.", fmt.Sprintf("not finite in %d of %d seeds, first in steps %d to %d", bad, g.seeds, lo, hi), bad == g.seeds && hi <= 10},
		{"Stage 2 without overlap and with one bucket: still worse than stage 1.", fmt.Sprintf("loss at the end %v times stage 1's", single), every(single, worse)},
		{"Stage 1 with bf16 accumulation: as bad as stage 2.", fmt.Sprintf("loss at the end %v times that of stage 2, bucket 0.83, which is %v times the good run's", stage1, most),
			stage1.n == g.seeds && stage1.low > 1/alike && stage1.high < alike && every(most, worse)},
		{"Norms with learning rate 0: stage 1 with fp32 accumulation differs, the other three agree.", norms, agree},
		{"use_reentrant=False: worse.", fmt.Sprintf("loss at the end %v times that with reentrant checkpointing", non), every(non, worse)},
	}
}

func (g *gap) tails(name string) []float64 {
	var all []float64
	for _, c := range g.runs[name] {
		all = append(all, c.tail(g.steps))
	}
	return all
}

// judgeNorms compares the four runs, bit for bit.
func (g *gap) judgeNorms() (text string, ok bool) {
	ok = true
	for k, n := range g.norms {
		if k > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %.6f", n.title, n.norms[0])
		for s := range n.norms {
			if k > 1 {
				ok = ok && n.norms[s] == g.norms[1].norms[s]
			}
			if k > 0 {
				ok = ok && n.norms[s] != g.norms[0].norms[s]
			}
		}
	}
	return text, ok
}

// judgeExact compares the ways to run the correct engine with the first: how many
// values were compared, and how many of them differ.
func (g *gap) judgeExact() (compared, differ int) {
	for _, r := range g.exact[1:] {
		n := r.differs(g.exact[0])
		compared += 2*len(r.loss) + 1
		differ += n
	}
	return compared, differ
}

// differs counts losses, norms and weights that are not those of another run.
func (r exactRun) differs(other exactRun) (n int) {
	for s := range r.loss {
		if s >= len(other.loss) || math.Float64bits(r.loss[s]) != math.Float64bits(other.loss[s]) {
			n++
		}
		if s >= len(other.norm) || math.Float64bits(r.norm[s]) != math.Float64bits(other.norm[s]) {
			n++
		}
	}
	if r.weights != other.weights {
		n++
	}
	return n
}

// causes says what other variants tell of single faults.
func (g *gap) causes() []string {
	return []string{
		fmt.Sprintf("hook-order-layout alone, without overlap and in one bucket: loss at the end %v times stage 1's, against %v with all faults that act there.", g.atEnd(vHooksOnly, vGood), g.atEnd(vSingle, vGood)),
		fmt.Sprintf("pingpong-reset in the place of reuse-in-flight, bucket 0.83, where a step has two fills: loss at the end %v times stage 1's, and in the first quarter bucket 1.67 has %v times its loss.",
			g.atEnd(vPingpong, vGood), g.ratio(vLarger, vPingpong, func(c series) float64 { return c.head(g.steps) })),
	}
}
