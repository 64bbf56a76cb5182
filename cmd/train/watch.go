package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/profile"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/logged"
)

// phase is a part of a training step.
type phase int

// The phases. Gathering the weights is a part of the step phase; what overlap_comm
// hides of the reductions is in no phase of its own.
const (
	phaseData phase = iota
	phaseForward
	phaseBackward
	phaseReduce // waiting for reductions after the last backward
	phaseStep   // losses, norm, update and gather
	phaseGather
	phases
)

var phaseNames = [phases]string{"data", "forward", "backward", "reduce", "step", "gather"}

// breakdown measures where the time of a rank's steps goes. A nil breakdown
// measures nothing.
type breakdown struct {
	mu    sync.Mutex // gather is counted by another goroutine
	times [phases]time.Duration
	all   []float64 // of all ranks, as gathered, in milliseconds
}

// begin starts a phase; the function it returns ends it.
func (b *breakdown) begin(p phase) (end func()) {
	if b == nil {
		return func() {}
	}
	start := time.Now()
	return func() { b.add(p, time.Since(start)) }
}

func (b *breakdown) add(p phase, d time.Duration) {
	b.mu.Lock()
	b.times[p] += d
	b.mu.Unlock()
}

// take returns the times since the last call, in milliseconds.
func (b *breakdown) take() []float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	ms := make([]float64, phases)
	for p, d := range b.times {
		ms[p] = float64(d) / float64(time.Millisecond)
	}
	b.times = [phases]time.Duration{}
	return ms
}

// commsLog is rank 0's log of collectives.
type commsLog struct {
	logged.Log
	ops     []string // those that are measured
	verbose *os.File // nil: the table only
	err     error    // of the first line that could not be written
}

func (j *job) openCommsLog() error {
	c := j.cfg.CommsLogger
	if !c.Enabled {
		return nil
	}
	j.comms = &commsLog{ops: c.ProfOps}
	if c.ProfAll {
		j.comms.ops = logged.OpNames()
	}
	if !c.Verbose {
		return nil
	}
	var err error
	j.comms.verbose, err = os.Create(filepath.Join(j.out, "comms.log"))
	return err
}

func (l *commsLog) add(r logged.Record) {
	if !slices.Contains(l.ops, logged.OpName(r.Kind)) {
		return
	}
	l.Add(r)
	if l.verbose != nil && l.err == nil {
		_, l.err = fmt.Fprintln(l.verbose, r.Line())
	}
}

// close ends the log and returns its table.
func (l *commsLog) close() (string, error) {
	if l == nil {
		return "", nil
	}
	if l.verbose != nil {
		l.err = errors.Join(l.err, l.verbose.Close())
	}
	var b strings.Builder
	err := l.WriteTable(&b)
	return b.String(), errors.Join(l.err, err)
}

// watch puts what is to be measured between the trainer and its communicator.
func (j *job) watch(c comm.Communicator, b *breakdown, trace *profile.Trace) comm.Communicator {
	log := j.comms
	if c.Rank() != 0 {
		log = nil
	}
	if b == nil && log == nil && trace == nil {
		return c
	}
	return logged.Wrap(c, func(r logged.Record) {
		if b != nil && r.Sig.Name == "weights" {
			b.add(phaseGather, r.Time())
		}
		if log != nil {
			log.add(r)
		}
		if trace.On() {
			trace.Collective(r)
		}
	})
}

// reportBreakdown gathers the times of all ranks, and rank 0 shows and records them.
func (t *trainer) reportBreakdown(ctx context.Context, step int) error {
	if t.times == nil {
		return nil
	}
	n, w := int(phases), t.comm.Size()
	t.times.all = resize(t.times.all, n*w)
	mine := dtype.Buffer{DType: dtype.F64, F64: t.times.take()}
	all := dtype.Buffer{DType: dtype.F64, F64: t.times.all}
	if err := gather(ctx, t.comm, "times of the phases", evenly(n*w, w), mine, all); err != nil || t.comm.Rank() != 0 {
		return err
	}
	var events []monitor.Event
	for p, name := range phaseNames {
		events = append(events, monitor.Event{Name: "Train/Samples/elapsed_time_ms_" + name, Value: all.F64[p]})
	}
	if err := t.record(step, events...); err != nil {
		return err
	}
	if every := t.cfg.StepsPerPrint; every == 0 || step%every != 0 {
		return nil
	}
	for r := range w {
		var parts []string
		for p, name := range phaseNames {
			parts = append(parts, fmt.Sprintf("%s %.1f", name, all.F64[r*n+p]))
		}
		if err := t.progress.Printf("step %d: rank %d time (ms) | %s", step, r, strings.Join(parts, " | ")); err != nil {
			return err
		}
	}
	return nil
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
