package exchange_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/commtest"
	"github.com/zerogap/zerogap/zero/comm/exchange"
	"github.com/zerogap/zerogap/zero/comm/exchange/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect connects ranks through memory.
func connect(t *testing.T, world int, o exchange.Options, fate func(memory.Message) memory.Fate) []comm.Communicator {
	t.Helper()
	n := memory.New(world, fate)
	ends := make([]comm.Communicator, world)
	for r := range ends {
		e, err := exchange.Connect(n.Open(r), o)
		if err != nil {
			t.Fatal(err)
		}
		ends[r] = e
	}
	return ends
}

func TestConformance(t *testing.T) {
	o, worlds := commtest.Options{MaxBytes: 64 << 20}, []int{1, 2, 3, 4}
	if testing.Short() { // with the race detector
		o.MaxBytes, worlds = 600_000, []int{3}
	}
	commtest.Run(t, worlds, o, func(world int) []comm.Communicator {
		return connect(t, world, exchange.Options{Timeout: commtest.Timeout}, nil)
	})
}

// TestConformanceWithDelays: messages that take their time change nothing.
func TestConformanceWithDelays(t *testing.T) {
	if testing.Short() {
		t.Skip("takes its time")
	}
	commtest.Run(t, []int{3}, commtest.Options{MaxBytes: 300_000}, func(world int) []comm.Communicator {
		return connect(t, world, exchange.Options{Timeout: commtest.Timeout}, func(m memory.Message) memory.Fate {
			return memory.Fate{Delay: time.Duration((m.From*7+m.To*5+m.N*3+int(m.Tag))%11) * 50 * time.Microsecond}
		})
	})
}
