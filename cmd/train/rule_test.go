package main

import (
	"testing"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
)

// TestRule: the section optimizer chooses the rule and its parameters.
func TestRule(t *testing.T) {
	for _, c := range []struct {
		sets []string
		want zero.Rule
	}{
		{nil, zero.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}},
		{[]string{"type=Adam", "params.weight_decay=0.1"}, zero.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}},
		{[]string{"type=Adam", "params.adam_w_mode=false", "params.betas=[0.5, 0.25]", "params.eps=0.1", "params.weight_decay=0.2"},
			zero.Adam{Beta1: 0.5, Beta2: 0.25, Eps: 0.1, WeightDecay: 0.2}},
		{[]string{"type=SGD"}, zero.SGD{}},
		{[]string{"type=SGD", "params.momentum=0.9", "params.nesterov=true", "params.weight_decay=0.2"}, zero.SGD{Momentum: 0.9, Nesterov: true, WeightDecay: 0.2}},
		{[]string{"type=SGD", "params.momentum=0.9", "params.dampening=0.5"}, zero.SGD{Momentum: 0.9, Dampening: 0.5}},
		{[]string{"type=lion", "params.weight_decay=0.2"}, zero.Lion{Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.2}},
	} {
		sets := []string{"train_batch_size=4"}
		for _, s := range c.sets {
			sets = append(sets, "optimizer."+s)
		}
		cfg, err := config.Load("", sets, checks()...)
		if err != nil {
			t.Errorf("%q: %v", c.sets, err)
			continue
		}
		if got := rule(cfg); got != c.want {
			t.Errorf("%q: %v, want %v", c.sets, got, c.want)
		}
	}
}
