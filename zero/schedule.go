package zero

import (
	"errors"
	"math"
)

// Schedule gives the learning rate as a function of applied optimizer steps: the
// first step uses LR(0), the step after n applied ones LR(n). It does not move on
// skipped steps, and is independent of world size and accumulation.
//
// The schedules have DeepSpeed's parameters and formulae, with
// last_batch_iteration = applied steps. (DeepSpeed's own loop begins one step
// later: its first two steps both use the rate at 0.)
type Schedule interface {
	LR(applied int) float64
}

// Constant is one learning rate for all steps.
type Constant struct{ Rate float64 }

// LR implements Schedule.
func (c Constant) LR(int) float64 { return c.Rate }

// WarmupType is the curve of a warm-up.
type WarmupType string

// The curves, with n applied steps and N warm-up steps.
const (
	WarmupLog    WarmupType = "log"    // log(n+1) / log(N)
	WarmupLinear WarmupType = "linear" // n / N
)

// Warmup is what the warm-up schedules share.
type Warmup struct {
	NumSteps int        // warmup_num_steps; at least 2 are used
	Type     WarmupType // warmup_type
}

// DefaultWarmup returns DeepSpeed's defaults: 1000 steps, log.
func DefaultWarmup() Warmup { return Warmup{NumSteps: 1000, Type: WarmupLog} }

func (w Warmup) steps() int { return max(2, w.NumSteps) }

// gamma returns the fraction of the rate's rise after n applied steps, false
// when the warm-up is over.
func (w Warmup) gamma(n int) (float64, bool) {
	switch {
	case n >= w.steps():
		return 1, false
	case w.Type == WarmupLinear:
		return float64(n) / float64(w.steps()), true
	}
	return 1 / math.Log(float64(w.steps())) * math.Log(float64(n+1)), true
}

func (w Warmup) problems(p *problems) {
	p.check(w.NumSteps >= 1, "scheduler.params.warmup_num_steps", w.NumSteps, "a whole number of at least 1")
	p.check(w.Type == WarmupLog || w.Type == WarmupLinear, "scheduler.params.warmup_type", string(w.Type), `"log" or "linear"`)
}

// WarmupLR rises from MinLR to MaxLR and stays there.
type WarmupLR struct {
	Warmup
	MinLR float64 // warmup_min_lr
	MaxLR float64 // warmup_max_lr
}

// DefaultWarmupLR returns DeepSpeed's defaults: from 0 to the optimizer's rate.
func DefaultWarmupLR(rate float64) WarmupLR {
	return WarmupLR{Warmup: DefaultWarmup(), MaxLR: rate}
}

// LR implements Schedule.
func (s WarmupLR) LR(applied int) float64 {
	gamma, _ := s.gamma(applied)
	return s.MinLR + float64((s.MaxLR-s.MinLR)*gamma)
}

// Validate returns every problem at once, joined, by dotted key.
func (s WarmupLR) Validate() error {
	var p problems
	s.Warmup.problems(&p)
	p.rate("scheduler.params.warmup_min_lr", s.MinLR)
	p.rate("scheduler.params.warmup_max_lr", s.MaxLR)
	return errors.Join(p...)
}

// WarmupDecayLR rises from MinLR to MaxLR and then falls linearly back to MinLR
// at TotalNumSteps.
type WarmupDecayLR struct {
	Warmup
	MinLR         float64 // warmup_min_lr
	MaxLR         float64 // warmup_max_lr
	TotalNumSteps int     // total_num_steps
}

// DefaultWarmupDecayLR returns DeepSpeed's defaults: from 0 to 0.001.
func DefaultWarmupDecayLR(totalNumSteps int) WarmupDecayLR {
	return WarmupDecayLR{Warmup: DefaultWarmup(), MaxLR: 0.001, TotalNumSteps: totalNumSteps}
}

// LR implements Schedule.
func (s WarmupDecayLR) LR(applied int) float64 {
	gamma, rising := s.gamma(applied)
	if !rising {
		gamma = max(0, float64(s.TotalNumSteps-applied)/float64(max(1, s.TotalNumSteps-s.steps())))
	}
	return s.MinLR + float64((s.MaxLR-s.MinLR)*gamma)
}

// Validate returns every problem at once, joined, by dotted key.
func (s WarmupDecayLR) Validate() error {
	var p problems
	s.Warmup.problems(&p)
	p.rate("scheduler.params.warmup_min_lr", s.MinLR)
	p.rate("scheduler.params.warmup_max_lr", s.MaxLR)
	p.check(s.TotalNumSteps >= 1, "scheduler.params.total_num_steps", s.TotalNumSteps, "a whole number of at least 1")
	return errors.Join(p...)
}

// WarmupCosineLR rises from MinRatio·Rate to Rate and then falls along half a
// cosine to CosMinRatio·Rate at TotalNumSteps, where it stays.
type WarmupCosineLR struct {
	Warmup
	Rate          float64 // the optimizer's lr
	MinRatio      float64 // warmup_min_ratio
	CosMinRatio   float64 // cos_min_ratio
	TotalNumSteps int     // total_num_steps
}

// DefaultWarmupCosineLR returns DeepSpeed's defaults: from 0 to rate, then down to
// a ten-thousandth of it.
func DefaultWarmupCosineLR(rate float64, totalNumSteps int) WarmupCosineLR {
	return WarmupCosineLR{Warmup: DefaultWarmup(), Rate: rate, CosMinRatio: 0.0001, TotalNumSteps: totalNumSteps}
}

// LR implements Schedule.
func (s WarmupCosineLR) LR(applied int) float64 {
	gamma, rising := s.gamma(applied)
	if rising {
		return s.Rate * (s.MinRatio + float64(gamma*(1-s.MinRatio)))
	}
	progress := min(1, float64(applied-s.steps()+1)/float64(max(1, s.TotalNumSteps-s.steps())))
	cosine := (1 + math.Cos(math.Pi*progress)) / 2
	return s.Rate * max(0, s.CosMinRatio+float64((1-s.CosMinRatio)*cosine))
}

// Validate returns every problem at once, joined, by dotted key.
func (s WarmupCosineLR) Validate() error {
	var p problems
	s.Warmup.problems(&p)
	p.rate("optimizer.params.lr", s.Rate)
	p.check(s.MinRatio >= 0 && s.MinRatio <= 1, "scheduler.params.warmup_min_ratio", s.MinRatio, "a number from 0 to 1")
	p.check(s.CosMinRatio >= 0 && s.CosMinRatio <= 1, "scheduler.params.cos_min_ratio", s.CosMinRatio, "a number from 0 to 1")
	p.check(s.TotalNumSteps >= 1, "scheduler.params.total_num_steps", s.TotalNumSteps, "a whole number of at least 1")
	return errors.Join(p...)
}

func (p *problems) rate(key string, lr float64) {
	p.check(lr >= 0 && !math.IsInf(lr, 0), key, lr, "a finite number of at least 0")
}
