package local

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/zerogap/zerogap/zero/comm"
)

// Run connects world ranks, calls f for each on a goroutine of its own, and returns
// when all have. Communicators are closed after f.
//
// A rank whose f returns an error or panics aborts the others, so that none waits
// for it. Run returns the error of the rank where it began, with its number; when
// ctx has ended, its cause.
func Run(ctx context.Context, world int, f func(context.Context, comm.Communicator) error, opts ...Option) error {
	failures := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range New(world, opts...) {
		wg.Go(func() { failures[r] = runRank(ctx, c, f) })
	}
	wg.Wait()
	return rootCause(ctx, failures)
}

func runRank(ctx context.Context, c comm.Communicator, f func(context.Context, comm.Communicator) error) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			c.Abort(err)
		}
	}()
	return f(ctx, c)
}

// rootCause picks the error to show from those of all ranks: not that of a rank
// that was told of it.
func rootCause(ctx context.Context, failures []error) error {
	var news error
	for r, err := range failures {
		var peer *comm.RankError
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &peer):
			return fmt.Errorf("rank %d: %w", r, err)
		case news == nil:
			news = err
		}
	}
	return news
}
