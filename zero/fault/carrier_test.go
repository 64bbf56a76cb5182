package fault_test

import (
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/fault"
)

// TestCarrierIsRight: with a fault that has no occasion, the laboratory's route gives
// the bits of the optimizer's own in every way to run: what a fault shows is the
// fault's.
func TestCarrierIsRight(t *testing.T) {
	for k := range 48 {
		cfg := config(func(c *zero.Config) {
			c.GradientAccumulationSteps = 1 + k%3
			c.GradientClipping = float64(k % 2)
			c.BF16.Enabled = k%4 < 2
			c.CommunicationDataType = []string{"", "bf16", "fp32", "fp16"}[k%4]
			c.DataTypes.GradAccumDType = []string{"", "", "bf16"}[k/2%3]
			c.PrescaleGradients = k%7 == 0
			z := &c.ZeroOptimization
			z.Stage, z.ReduceBucketSize = k%3, []int{67, 131, 1001, 5e8}[k/3%4]
			z.RoundRobinGradients, z.ReduceScatter, z.ContiguousGradients = k%5 == 0, k%3 != 1, k%8 != 7
		})
		// Without overlap no buffer is overtaken.
		tr := training{cfg: cfg, world: 1 + k%4, steps: 2, grad: noise, rule: zero.DefaultAdamW()}
		plain := tr.must(t)
		tr.faults = []string{fault.ReuseInFlight}
		if d := sameBits(plain, tr.must(t)); d != "" {
			t.Errorf("%d: the laboratory's route gives other bits: %s\n%+v", k, d, cfg)
		}
	}
}

// TestDeterministic: a training with faults can be repeated bit for bit, and another
// seed gives another one where something is drawn.
func TestDeterministic(t *testing.T) {
	drawn := map[string]bool{
		fault.ReuseInFlight: true, fault.PingpongReset: true, fault.OneProducerWait: true,
		fault.OversizeLifetime: true, fault.NotReadyShift: true,
	}
	for _, name := range fault.Names() {
		tr := training{faults: []string{name}, seed: 1, cfg: busy(2), world: 2, steps: 3, grad: noise}
		first := tr.must(t)
		if d := sameBits(first, tr.must(t)); d != "" {
			t.Errorf("%s: a second run differs: %s", name, d)
		}
		tr.seed = 2
		if d := sameBits(first, tr.must(t)); (d != "") != drawn[name] {
			t.Errorf("%s: another seed differs: %v, want %v", name, d != "", drawn[name])
		}
	}
}

// busy gives every fault of the buckets an occasion.
func busy(stage int) zero.Config {
	return config(func(c *zero.Config) {
		c.GradientAccumulationSteps = 2
		z := &c.ZeroOptimization
		z.Stage, z.OverlapComm, z.ReduceBucketSize = stage, true, 131
	})
}

// TestNames: what cannot be chosen is refused with what can.
func TestNames(t *testing.T) {
	for _, tc := range []struct {
		names []string
		want  string
	}{
		{[]string{"ring"}, `unknown fault "ring": allowed are hook-order-layout, reuse-in-flight`},
		{[]string{fault.RingOrder, fault.RingOrder}, "given twice"},
		{[]string{fault.NoSkip, fault.RankLocalSkip}, "replace the same piece"},
	} {
		_, err := fault.New(tc.names, 0)
		if err == nil || !contains(err.Error(), tc.want) {
			t.Errorf("%v: error %v, want %q", tc.names, err, tc.want)
		}
	}
	all := map[string]bool{}
	for _, c := range fault.Classes() {
		if all[c.Name] || c.Mechanism == "" {
			t.Errorf("class %q is there twice, or says nothing", c.Name)
		}
		all[c.Name] = true
		lab, err := fault.New([]string{c.Name}, 0)
		if err != nil || fmt.Sprint(lab.Names(), lab.Rank().Parts.Names) != fmt.Sprintf("[%s] [%[1]s]", c.Name) {
			t.Errorf("%s: %v, %v: the name is not carried on", c.Name, lab, err)
		}
	}
	if len(all) != 21 {
		t.Errorf("%d classes, want 21", len(all))
	}
}
