// Package commtest is the suite that every engine behind comm.Communicator passes:
// the same bits from the same collectives, errors that name both sides, and no rank
// that waits for ever.
//
// A case is written from the point of view of one rank, so that an engine may put
// every rank into a process of its own.
package commtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// Timeout is what the communicators of the suite are made with.
const Timeout = time.Second

// Case is one test. Every rank runs Rank, which returns an error where this rank
// did not see what it should.
type Case struct {
	Name string
	// Breaks says that the communicator is broken afterwards. A communicator may
	// run any number of cases before that do not break it.
	Breaks bool
	// World is the least number of ranks.
	World int
	Rank  func(c comm.Communicator, o Options) error
}

// Options of a run of the suite.
type Options struct {
	// MaxBytes bounds the buffers; 64 MiB is all cases.
	MaxBytes int
}

// Cases returns the suite, those that break their communicator last.
func Cases() []Case {
	return append(sums(), append(gathers(), append(sequences(), failures()...)...)...)
}

// deadline is when a case that has not returned is taken to hang.
const deadline = 2 * time.Minute

// Run runs the suite on the ranks of this process: each rank on a goroutine, cases
// that break nothing on one communicator, which connect makes for world ranks.
func Run(t *testing.T, worlds []int, o Options, connect func(world int) []comm.Communicator) {
	for _, world := range worlds {
		t.Run(fmt.Sprintf("ranks=%d", world), func(t *testing.T) {
			ends := connect(world)
			defer func() { together(t, ends, comm.Communicator.Close) }()
			for _, c := range Cases() {
				if world < c.World {
					continue
				}
				t.Run(c.Name, func(t *testing.T) {
					ends := ends
					if c.Breaks {
						ends = connect(world)
						defer func() { together(t, ends, comm.Communicator.Close) }()
					}
					together(t, ends, func(e comm.Communicator) error { return c.Rank(e, o) })
				})
			}
		})
	}
}

// together runs f for all ranks at once.
func together(t *testing.T, ends []comm.Communicator, f func(comm.Communicator) error) {
	t.Helper()
	errs := make([]error, len(ends))
	var wg sync.WaitGroup
	for r, e := range ends {
		wg.Go(func() { errs[r] = f(e) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatalf("ranks did not return within %v", deadline)
	}
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// contains checks an error's text.
func contains(err error, want ...string) error {
	if err == nil {
		return fmt.Errorf("no error, want one with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			return fmt.Errorf("error %q does not contain %q", err, w)
		}
	}
	return nil
}

func sig(name string, bucket int) comm.Signature {
	return comm.Signature{Name: name, Step: 1, Bucket: bucket, Layout: 7}
}
