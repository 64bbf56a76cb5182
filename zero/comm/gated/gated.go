// Package gated puts a test between an implementation and its communicator. The
// ends of a group are wrapped; the sums stay those of the communicator underneath.
// Then
//
//   - every collective is recorded;
//   - chosen collectives move no data until the test releases them;
//   - a buffer that is written between Start and the end of Wait is an error on
//     all ranks that names the collective, whether or not the result would show it;
//   - buffers that were sent can be overwritten with NaN the moment they are the
//     caller's again, so that whoever still reads them is found out;
//   - collectives can be delayed, or fail.
//
// Together they make races between a computation and its communication happen
// every time, or never.
package gated

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Event is one collective of one rank, as it was started.
type Event struct {
	Rank   int
	N      int // number among the rank's collectives, from 0
	Held   int // number among the rank's held collectives, from 0; -1 when it is not held
	Kind   comm.Kind
	Name   string
	Step   int
	Bucket int

	Sent, Received int         // elements
	SentAs         dtype.DType // format of Send
	ReceivedAs     dtype.DType // format of Recv
	SentFrom       uintptr     // address of Send's first element, 0 without one: the buffer's identity
	ReceivedIn     uintptr     // the same of Recv
}

// Options say which collectives are treated how. A nil function treats none. The
// functions are called by Start with the event, possibly for several ranks at
// once.
type Options struct {
	// Hold keeps collectives from moving data until Release.
	Hold func(Event) bool
	// Delay is how long a collective takes beyond what it takes underneath.
	Delay func(Event) time.Duration
	// Poison overwrites Send with NaN before Wait returns. It leaves alone what
	// is part of the collective's own Recv.
	Poison func(Event) bool
	// Fail makes a collective fail with the error it returns, if any: it moves no
	// data, and all ranks are told, as after Abort.
	Fail func(Event) error
}

// Group is the test's side of a set of connected ranks. Its methods may be called
// from any goroutine.
type Group struct {
	opts  Options
	ends  []*end
	freed chan struct{} // closed when nothing is held any more

	mu      sync.Mutex
	log     [][]Event       // by rank
	held    [][]Event       // by rank, in order of start
	gates   []map[int]*gate // by rank and number among the held
	lifted  bool
	changed chan struct{} // closed and replaced when an event came
}

// gate is opened by Release.
type gate struct {
	once sync.Once
	open chan struct{}
}

// New wraps the ends of one group, by rank. They belong to the Group afterwards:
// use and close those of Comms instead.
func New(ends []comm.Communicator, o Options) *Group {
	g := &Group{
		opts: o, freed: make(chan struct{}), changed: make(chan struct{}),
		log: make([][]Event, len(ends)), held: make([][]Event, len(ends)), gates: make([]map[int]*gate, len(ends)),
	}
	for r, c := range ends {
		g.gates[r] = map[int]*gate{}
		e := &end{Communicator: c, group: g, wake: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
		go e.work()
		g.ends = append(g.ends, e)
	}
	return g
}

// Comms returns the wrapped ends, by rank. Each has a goroutine of its own, which
// ends with Close. A rank's collectives run one after the other, in order of Start.
func (g *Group) Comms() []comm.Communicator {
	ends := make([]comm.Communicator, len(g.ends))
	for r, e := range g.ends {
		ends[r] = e
	}
	return ends
}

// Log returns what rank has started so far.
func (g *Group) Log(rank int) []Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.log[rank])
}

// Release lets the k-th held collective of rank (from 0) go, now or when it is
// started. Releases may come in any order; collectives still run in order of Start,
// so one that was released early waits for those before it.
func (g *Group) Release(rank, k int) {
	gate := g.gate(rank, k)
	gate.once.Do(func() { close(gate.open) })
}

// ReleaseAll lets every held collective of every rank go, now and later. A rank's
// Abort, its Close and a failing collective do so too: an error travels as it
// would without a Group.
func (g *Group) ReleaseAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.lifted {
		g.lifted = true
		close(g.freed)
	}
}

// Await returns the k-th held collective of rank (from 0) as soon as it has been
// started, or the error of ctx.
func (g *Group) Await(ctx context.Context, rank, k int) (Event, error) {
	for {
		g.mu.Lock()
		held, changed := g.held[rank], g.changed
		g.mu.Unlock()
		if k < len(held) {
			return held[k], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("rank %d has started %d held collectives, not yet number %d: %w", rank, len(held), k, context.Cause(ctx))
		}
	}
}

func (g *Group) gate(rank, k int) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[rank][k] == nil {
		g.gates[rank][k] = &gate{open: make(chan struct{})}
	}
	return g.gates[rank][k]
}

// enter records an event and completes it.
func (g *Group) enter(e *Event) {
	hold := g.opts.Hold != nil && g.opts.Hold(*e)
	g.mu.Lock()
	defer g.mu.Unlock()
	e.Held = -1
	if hold {
		e.Held = len(g.held[e.Rank])
		g.held[e.Rank] = append(g.held[e.Rank], *e)
	}
	g.log[e.Rank] = append(g.log[e.Rank], *e)
	close(g.changed)
	g.changed = make(chan struct{})
}

func newEvent(rank, n int, op *comm.Op) Event {
	return Event{
		Rank: rank, N: n, Held: -1,
		Kind: op.Kind, Name: op.Sig.Name, Step: op.Sig.Step, Bucket: op.Sig.Bucket,
		Sent: op.Send.Len(), Received: op.Recv.Len(),
		SentAs: op.Send.DType, ReceivedAs: op.Recv.DType,
		SentFrom: address(op.Send), ReceivedIn: address(op.Recv),
	}
}
