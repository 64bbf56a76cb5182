package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// Of the measurement of overlap.
const (
	overlapLayers = 32 // each a parameter and a bucket
	overlapTimes  = 5  // backwards, of which the median counts
)

// overlapResult is the seconds of a backward: by itself, its communication by itself, and
// both, one after the other and at once. It is that of the slowest rank.
type overlapResult struct {
	compute, communication, sequential, overlapped float64
	// What the simulation of train plan makes of the network, measured beforehand.
	simSequential, simOverlapped float64
}

// String says how much of the communication is hidden.
func (r overlapResult) String() string {
	longest := max(r.compute, r.communication)
	hidden := (r.compute + r.communication - r.overlapped) / min(r.compute, r.communication)
	return fmt.Sprintf("backward %.0f ms, reductions %.0f ms; one after the other %.0f ms (simulated %.0f), with overlap_comm %.0f ms (simulated %.0f): %.2f x the longer one, %.0f %% of what can be hidden is",
		1e3*r.compute, 1e3*r.communication, 1e3*r.sequential, 1e3*r.simSequential, 1e3*r.overlapped, 1e3*r.simOverlapped, r.overlapped/longest, 100*hidden)
}

// measureOverlap runs the optimizer's reductions beside a backward that takes as long as
// it is told. busy makes it use a CPU; without, it sleeps, as a process does whose
// accelerator computes. It is collective.
func measureOverlap(ctx context.Context, c comm.Communicator, elements int, backward time.Duration, busy bool) (overlapResult, error) {
	var r overlapResult
	work := time.Sleep
	if busy {
		work = spin
	}
	for _, m := range []struct {
		to       *float64
		overlap  bool
		backward time.Duration
		send     bool
	}{
		{&r.compute, false, backward, false}, {&r.communication, true, 0, true},
		{&r.sequential, false, backward, true}, {&r.overlapped, true, backward, true},
	} {
		var err error
		if *m.to, err = timeBackward(ctx, c, elements, m.overlap, m.send, func() { work(m.backward / overlapLayers) }); err != nil {
			return r, err
		}
	}
	return r, nil
}

// simulate fills in what train plan would say of the same backward over the network.
func (r *overlapResult) simulate(n network, elements int) error {
	params, cfg := overlapModel(elements, false)
	s := scenario{params: params, cfg: cfg, rule: zero.SGD{}}
	rows, err := s.predict([]int{2}, []int{n.World})
	if err != nil || n.World < 2 {
		return err
	}
	took := rows[0].reductions(n.Scatter, 1)
	r.simSequential = backward(rows[0], r.compute, took)
	rows[0].overlap = true
	r.simOverlapped = backward(rows[0], r.compute, took)
	return nil
}

// overlapModel is the layers of the measurement, and how they are reduced.
func overlapModel(elements int, overlap bool) ([]zero.Param, zero.Config) {
	each := elements / overlapLayers
	init := make([]float32, each)
	params := make([]zero.Param, overlapLayers)
	for i := range params {
		params[i] = zero.Param{Name: fmt.Sprintf("layer.%d", i), Shape: []int{each}, Init: init}
	}
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = overlap
	cfg.ZeroOptimization.ReduceBucketSize = each
	return params, cfg
}

// timeBackward returns the median time of a backward, which calls work for each layer.
func timeBackward(ctx context.Context, c comm.Communicator, elements int, overlap, send bool, work func()) (float64, error) {
	params, cfg := overlapModel(elements, overlap)
	opt, err := zero.New(ctx, params, cfg, c, zero.SGD{})
	if err != nil {
		return 0, err
	}
	defer opt.Close()
	grad, times := make([]float32, elements/overlapLayers), make([]float64, 0, overlapTimes)
	for range overlapTimes {
		if err := comm.Do(ctx, c, &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "overlap"}}); err != nil {
			return 0, err
		}
		start := time.Now()
		for i := range overlapLayers {
			work()
			if send {
				if err := opt.GradReady(ctx, overlapLayers-1-i, grad); err != nil {
					return 0, err
				}
			}
		}
		if send {
			if err := opt.Drain(ctx); err != nil {
				return 0, err
			}
		}
		times = append(times, time.Since(start).Seconds())
		if err := opt.EndBackward(ctx); err != nil {
			return 0, err
		}
		if _, err := opt.Step(ctx, 0); err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return slowest(ctx, c, times[len(times)/2])
}

// spin keeps a CPU busy.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}
