package exchange_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/exchange"
	"github.com/zerogap/zerogap/zero/comm/exchange/memory"
)

const timeout = 300 * time.Millisecond

// outcome runs three reduce-scatters of n elements on every rank and returns the first
// error of each.
func outcome(t *testing.T, world, n int, fate func(memory.Message) memory.Fate) []error {
	t.Helper()
	ends := connect(t, world, exchange.Options{Timeout: timeout}, fate)
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range ends {
		wg.Go(func() {
			bounds := make([]int, world+1)
			for k := range bounds {
				bounds[k] = n * k / world
			}
			for step := 1; step <= 3 && errs[r] == nil; step++ {
				errs[r] = comm.Do(context.Background(), c, &comm.Op{
					Kind: comm.ReduceScatter, Sig: comm.Signature{Name: "x", Step: step}, Bounds: bounds,
					Send: dtype.Make(dtype.F32, n), Recv: dtype.Make(dtype.F32, bounds[r+1]-bounds[r]),
				})
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("ranks did not return within 10 s")
	}
	for _, c := range ends {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

// TestTroubleOnTheWay: what the network does to a message is an error on every rank
// that says what was being done and with whom, never a wrong sum and never a hang.
func TestTroubleOnTheWay(t *testing.T) {
	const large = 100_000 // travels beside its announcement
	broken := errors.New("cable cut")
	for _, tc := range []struct {
		name string
		n    int
		hit  func(memory.Message) bool
		fate memory.Fate
		want []string
		lost bool
	}{
		{"a lost announcement", 30, func(m memory.Message) bool { return m.Tag == exchange.Control && m.N == 0 }, memory.Fate{Lose: true}, []string{"operation", "of step 1", "of step 2"}, false},
		{"a lost announcement that nothing follows", 30, func(m memory.Message) bool { return m.Tag == exchange.Control && m.N >= 1 && m.N <= 2 }, memory.Fate{Lose: true}, []string{"waited 300ms for rank"}, true},
		{"lost data", large, func(m memory.Message) bool { return m.Tag == exchange.Data && m.N == 1 }, memory.Fate{Lose: true}, []string{"waited 300ms for", "reduce-scatter"}, true},
		{"data that takes too long", large, func(m memory.Message) bool { return m.Tag == exchange.Data }, memory.Fate{Delay: time.Minute}, []string{"waited 300ms for"}, true},
		{"a connection that breaks", large, func(m memory.Message) bool { return m.Tag == exchange.Data }, memory.Fate{Fail: broken}, []string{"rank 1", "cable cut"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := outcome(t, 3, tc.n, func(m memory.Message) memory.Fate {
				if m.From == 1 && m.To == 2 && tc.hit(m) {
					return tc.fate
				}
				return memory.Fate{}
			})
			for r, err := range errs {
				if err == nil {
					t.Errorf("rank %d: no error", r)
					continue
				}
				for _, want := range tc.want {
					if r != 0 && !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: %q does not contain %q", r, err, want)
					}
				}
				if errors.Is(err, exchange.ErrLost) != tc.lost {
					t.Errorf("rank %d: %v is ErrLost: %v, want %v", r, err, !tc.lost, tc.lost)
				}
			}
		})
	}
}

// TestCloseWaitsForTheOthers: with Linger a rank stays until the others have closed,
// or says who has not.
func TestCloseWaitsForTheOthers(t *testing.T) {
	ends := connect(t, 2, exchange.Options{Timeout: timeout, Linger: 10 * time.Second}, nil)
	start := time.Now()
	time.AfterFunc(100*time.Millisecond, func() { ends[1].Close() })
	if err := ends[0].Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < 90*time.Millisecond || took > 5*time.Second {
		t.Errorf("closed after %v", took)
	}
	ends[1].Close()

	ends = connect(t, 2, exchange.Options{Timeout: timeout, Linger: 50 * time.Millisecond}, nil)
	if err := ends[0].Close(); !errors.Is(err, exchange.ErrLost) || !strings.Contains(err.Error(), "rank 1 to close") {
		t.Errorf("error %v", err)
	}
	ends[1].Close()
}

// TestACauseSurvivesTheWay: an error keeps its text, at most a message long, and its
// rank.
func TestACauseSurvivesTheWay(t *testing.T) {
	ends := connect(t, 2, exchange.Options{Timeout: timeout}, nil)
	long := "begin " + strings.Repeat("é", 5000)
	ends[1].Abort(errors.New(long))
	err := comm.Do(context.Background(), ends[0], &comm.Op{Kind: comm.Barrier})
	var rank *comm.RankError
	if !errors.As(err, &rank) || rank.Rank != 1 || !strings.Contains(err.Error(), "begin ééé") || !strings.HasSuffix(err.Error(), "é...") {
		t.Errorf("error %.80v", err)
	}
	if errors.Is(err, exchange.ErrLost) {
		t.Error("a rank's own failure is ErrLost")
	}
	for _, c := range ends {
		c.Close()
	}
}

// TestWaitingSaysForWhom: a rank that waits longer than a moment can be asked for whom.
func TestWaitingSaysForWhom(t *testing.T) {
	n := memory.New(2, nil)
	var ends []*exchange.End
	for r := range 2 {
		e, err := exchange.Connect(n.Open(r), exchange.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		ends = append(ends, e)
	}
	h := ends[0].Start(context.Background(), &comm.Op{Kind: comm.Barrier})
	for deadline := time.Now().Add(5 * time.Second); ends[0].Waiting() == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never says")
		}
	}
	if s := ends[0].Waiting(); s != "barrier, for rank 1, which did not come" {
		t.Errorf("it says %q", s)
	}
	if err := errors.Join(comm.Do(context.Background(), ends[1], &comm.Op{Kind: comm.Barrier}), h.Wait()); err != nil {
		t.Error(err)
	}
	if s := ends[0].Waiting(); s != "" {
		t.Errorf("afterwards it says %q", s)
	}
}

// TestATransportThatDoesNotOpen leaves nothing behind.
func TestATransportThatDoesNotOpen(t *testing.T) {
	want := errors.New("no network")
	if _, err := exchange.Connect(func() (exchange.Transport, error) { return nil, want }, exchange.Options{}); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
}
