package local

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// meet is a collective that all ranks must come to.
func meet(ctx context.Context, c comm.Communicator) error {
	return comm.Do(ctx, c, &comm.Op{Kind: comm.Barrier, Send: dtype.Buffer{}, Recv: dtype.Buffer{}})
}

func TestRunReturnsWhenAllRanksHave(t *testing.T) {
	var sum atomic.Int64
	err := Run(context.Background(), 3, func(ctx context.Context, c comm.Communicator) error {
		sum.Add(int64(c.Rank() + 1))
		return meet(ctx, c)
	})
	if err != nil || sum.Load() != 6 {
		t.Errorf("error %v, ranks add up to %d, want 6", err, sum.Load())
	}
}

func TestRunNamesTheRankWhereItBegan(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, fail := range map[string]func() error{
		"an error": func() error { return broken },
		"a panic":  func() error { panic("disk on fire") },
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(context.Background(), 3, func(ctx context.Context, c comm.Communicator) error {
				if c.Rank() == 2 {
					return fail()
				}
				return meet(ctx, c) // rank 2 never comes
			})
			if err == nil || !strings.HasPrefix(err.Error(), "rank 2: ") || !strings.Contains(err.Error(), "disk on fire") {
				t.Errorf("error %v, want that of rank 2", err)
			}
		})
	}
}

func TestRunReturnsTheCauseOfAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	err := Run(ctx, 2, func(ctx context.Context, c comm.Communicator) error {
		if c.Rank() == 0 {
			cancel(enough)
		}
		for {
			if err := meet(ctx, c); err != nil {
				return err
			}
		}
	})
	if !errors.Is(err, enough) {
		t.Errorf("error %v, want %v", err, enough)
	}
}
