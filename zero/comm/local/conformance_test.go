package local

import (
	"testing"

	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/commtest"
)

func TestConformance(t *testing.T) {
	o, worlds := commtest.Options{MaxBytes: 64 << 20}, []int{1, 2, 3, 4}
	if testing.Short() { // with the race detector
		o.MaxBytes, worlds = 600_000, []int{3}
	}
	commtest.Run(t, worlds, o, func(world int) []comm.Communicator {
		return New(world, WithTimeout(commtest.Timeout))
	})
}
