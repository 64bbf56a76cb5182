package local

import (
	"testing"

	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/commtest"
)

func TestConformance(t *testing.T) {
	o := commtest.Options{MaxBytes: 64 << 20}
	if testing.Short() {
		o.MaxBytes = 1 << 20
	}
	commtest.Run(t, []int{1, 2, 3, 4}, o, func(world int) []comm.Communicator {
		return New(world, WithTimeout(commtest.Timeout))
	})
}
