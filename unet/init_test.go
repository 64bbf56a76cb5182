package unet

import (
	"slices"
	"testing"
)

// A network with more attention has the same weights in everything the two
// share, and a seed of its own changes all of them.
func TestInitialWeightsDependOnSeedAndNameAlone(t *testing.T) {
	more := small()
	more.DownBlockTypes = []string{AttnDownBlock2D, AttnDownBlock2D, AttnDownBlock2D}
	values := map[string][]float32{}
	for _, p := range mustNew(t, small(), 7).Params() {
		values[p.Name] = p.Value.Float32s()
	}
	found := 0
	for _, p := range mustNew(t, more, 7).Params() {
		if w, ok := values[p.Name]; ok {
			found++
			if !slices.Equal(p.Value.Float32s(), w) {
				t.Errorf("%s has other values", p.Name)
			}
		}
	}
	if found != len(values) {
		t.Errorf("%d of %d parameters found", found, len(values))
	}
	for _, p := range mustNew(t, small(), 8).Params() {
		constant := slices.Min(p.Value.Float32s()) == slices.Max(p.Value.Float32s()) && p.Len() > 1
		if !constant && slices.Equal(p.Value.Float32s(), values[p.Name]) {
			t.Errorf("%s has the same values with another seed", p.Name)
		}
	}
}
