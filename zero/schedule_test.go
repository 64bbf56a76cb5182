package zero

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

// TestSchedules compares with rates that DeepSpeed's own code computed; see
// testdata/schedules.py. Logarithms and cosines may differ in the last bits.
func TestSchedules(t *testing.T) {
	data, err := os.ReadFile("testdata/schedules.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Steps     []int
		Schedules []struct {
			Type   string
			LR     float64
			Params struct {
				MinLR       float64  `json:"warmup_min_lr"`
				MaxLR       *float64 `json:"warmup_max_lr"`
				NumSteps    *int     `json:"warmup_num_steps"`
				Type        *string  `json:"warmup_type"`
				TotalSteps  int      `json:"total_num_steps"`
				MinRatio    float64  `json:"warmup_min_ratio"`
				CosMinRatio *float64 `json:"cos_min_ratio"`
			}
			Rates []float64
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for k, g := range golden.Schedules {
		p := g.Params
		warmup := DefaultWarmup()
		if p.NumSteps != nil {
			warmup.NumSteps = *p.NumSteps
		}
		if p.Type != nil {
			warmup.Type = WarmupType(*p.Type)
		}
		var s interface {
			Schedule
			Validate() error
		}
		switch g.Type {
		case "WarmupLR":
			s = WarmupLR{warmup, p.MinLR, *p.MaxLR}
		case "WarmupDecayLR":
			d := DefaultWarmupDecayLR(p.TotalSteps)
			d.Warmup, d.MinLR = warmup, p.MinLR
			if p.MaxLR != nil {
				d.MaxLR = *p.MaxLR
			}
			s = d
		case "WarmupCosineLR":
			c := DefaultWarmupCosineLR(g.LR, p.TotalSteps)
			c.Warmup, c.MinRatio = warmup, p.MinRatio
			if p.CosMinRatio != nil {
				c.CosMinRatio = *p.CosMinRatio
			}
			s = c
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		for i, n := range golden.Steps {
			if got, want := s.LR(n), g.Rates[i]; math.Abs(got-want) > 1e-14*math.Abs(want) && math.Abs(got-want) > 1e-18 {
				t.Errorf("schedule %d (%s) after %d steps: %v, want %v", k, g.Type, n, got, want)
			}
		}
	}
	if len(golden.Schedules) < 10 || len(golden.Steps) < 60 {
		t.Fatalf("only %d schedules, %d steps", len(golden.Schedules), len(golden.Steps))
	}
}

// TestScheduleByAppliedSteps: skipped steps do not move the rate, and neither do
// world size and accumulation; the rate can be asked for before the first step.
func TestScheduleByAppliedSteps(t *testing.T) {
	s := WarmupLR{Warmup{4, WarmupLinear}, 0, 0.1}
	want := []float64{0, 0.025, 0.05, 0.1 * 3 / 4, 0.1, 0.1}
	for _, world := range []int{1, 4} {
		for _, skipped := range []int{0, 2} {
			cfg := config(func(c *Config) { c.GradientAccumulationSteps = 4 / world })
			var rates []float64
			tr := trial{cfg: cfg, world: world, sizes: []int{3}, steps: skipped + 6, grad: func(s, _, _, _ int) float32 {
				if s < skipped {
					return float32(math.NaN())
				}
				return 1
			}}
			applied := 0
			for _, r := range tr.must(t).results {
				if r.Applied {
					rates = append(rates, s.LR(applied))
				}
				applied = r.AppliedSteps
			}
			for i, lr := range rates {
				if math.Abs(lr-want[i]) > 1e-15 {
					t.Errorf("world %d, %d skipped: applied step %d has rate %v, want %v", world, skipped, i+1, lr, want[i])
				}
			}
			if len(rates) != len(want) {
				t.Errorf("world %d, %d skipped: %d applied steps, want %d", world, skipped, len(rates), len(want))
			}
		}
	}
}

func TestScheduleValidate(t *testing.T) {
	err := WarmupDecayLR{Warmup{0, "cubic"}, -1, math.NaN(), 0}.Validate()
	wantError(t, err, "scheduler.params.warmup_num_steps = 0", `scheduler.params.warmup_type = "cubic"`, "scheduler.params.warmup_min_lr = -1", "scheduler.params.warmup_max_lr = NaN", "scheduler.params.total_num_steps = 0")
	err = WarmupCosineLR{DefaultWarmup(), math.Inf(1), 2, -1, 10}.Validate()
	wantError(t, err, "optimizer.params.lr = +Inf", "scheduler.params.warmup_min_ratio = 2", "scheduler.params.cos_min_ratio = -1")
}
