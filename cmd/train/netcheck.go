package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/comm/mpi"
)

// checkOptions is the command line of "train netcheck".
type checkOptions struct {
	config  string
	sets    repeated
	ranks   int
	max     count
	out     string
	library string
	overlap float64   // milliseconds
	size    count     // elements of the measurement of overlap
	plan    *scenario // of config
}

// netcheckCommand is "train netcheck": it measures the communication of the ranks it
// is started on.
//
//	mpirun -np 2 train netcheck [-config FILE] [-out FILE]
//	train netcheck -world 2
func netcheckCommand(args []string, stdout, stderr io.Writer) error {
	o, err := parseNetcheck(args, stderr)
	if err != nil {
		return err
	}
	launch := mpi.Detect(os.Getenv)
	if launch.MPI() {
		return o.checkMPI(launch, stdout, stderr)
	}
	return local.Run(context.Background(), o.ranks, func(ctx context.Context, c comm.Communicator) error {
		return o.measure(ctx, c, engineLocal, nil, stdout)
	})
}

func parseNetcheck(args []string, stderr io.Writer) (*checkOptions, error) {
	o := &checkOptions{max: 64 << 20, size: 16_000_000}
	f := newFlags("netcheck")
	f.StringVar(&o.config, "config", "", "configuration `file`: the model of step time is then that of its training")
	f.Var(&o.sets, "set", "`key=value` overrides a configuration key; may be repeated")
	f.IntVar(&o.ranks, "world", 2, "number of `ranks` in this process, where no launcher has started more")
	f.Var(&o.max, "max", "the largest buffer, in `bytes`")
	f.StringVar(&o.library, "library", "auto", "comm.library: openmpi, mpich or a `path`")
	f.Float64Var(&o.overlap, "overlap-ms", 0, "measure overlap_comm beside a backward pass of so many `milliseconds`, instead of the collectives")
	f.Var(&o.size, "elements", "with -overlap-ms: gradient `elements` of the backward pass")
	f.StringVar(&o.out, "out", "", "write the measurement to `file`, for train plan -net")
	if err := parseFlags(f, args, stderr); err != nil {
		return nil, err
	}
	switch {
	case o.ranks < 1 || o.ranks > 1024:
		return nil, usageError{fmt.Errorf("-world %d: want 1 to 1024", o.ranks)}
	case o.overlap < 0 || o.size < overlapLayers:
		return nil, usageError{fmt.Errorf("-overlap-ms %g, -elements %d: want 0 or more, and at least %d", o.overlap, o.size, overlapLayers)}
	case o.max < 1<<16:
		return nil, usageError{fmt.Errorf("-max %d: want at least %d", o.max, 1<<16)}
	case o.config == "" && len(o.sets) > 0:
		return nil, usageError{errors.New("-set belongs to -config")}
	}
	if o.config != "" {
		var err error
		if o.plan, err = fromConfig(o.config, o.sets, io.Discard); err != nil {
			return nil, usageError{err}
		}
	}
	return o, nil
}

// checkMPI measures between the processes of an MPI job.
func (o *checkOptions) checkMPI(l mpi.Launch, stdout, stderr io.Writer) error {
	c, err := mpi.Connect(mpi.Options{Library: o.library, Launch: l, Timeout: startTimeout})
	if err != nil {
		return usageError{err}
	}
	if err := o.measure(context.Background(), c, engineMPI+", "+c.Library(), c, stdout); err != nil {
		c.Abort(err)
		fmt.Fprintf(stderr, "train netcheck: rank %d: %v\n", c.Rank(), err)
		if err := c.Close(); err != nil {
			fmt.Fprintf(stderr, "train netcheck: rank %d: %v\n", c.Rank(), err)
		}
		c.Exit(exitFailed)
	}
	return c.Close()
}

// measure is collective; rank 0 prints.
func (o *checkOptions) measure(ctx context.Context, c comm.Communicator, engine string, lib native, stdout io.Writer) error {
	if o.overlap > 0 {
		return o.measureOverlap(ctx, c, engine, stdout)
	}
	n, err := measureNetwork(ctx, c, int(o.max), lib)
	if err != nil || c.Rank() != 0 {
		return err
	}
	n.Engine = engine
	return o.print(n, stdout)
}

func (o *checkOptions) measureOverlap(ctx context.Context, c comm.Communicator, engine string, stdout io.Writer) error {
	backward := time.Duration(o.overlap * float64(time.Millisecond))
	n, err := measureNetwork(ctx, c, int(o.max), nil)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		busy bool
	}{{"sleeping", false}, {"busy", true}} {
		r, err := measureOverlap(ctx, c, int(o.size), backward, m.busy)
		if err != nil {
			return err
		}
		if err := r.simulate(n, int(o.size)); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if _, err := fmt.Fprintf(stdout, "%s, %d ranks, %s: %v\n", engine, c.Size(), m.name, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// native is an engine that has collectives of its own to compare with.
type native interface {
	NativeReduceScatter(send, recv []float32) error
	NativeAllGather(send, recv []float32) error
}

// pointTime is about how long each size is measured.
const pointTime = 300 * time.Millisecond

// measureNetwork measures collectives of all sizes up to max bytes. It is collective;
// rank 0 has the result.
func measureNetwork(ctx context.Context, c comm.Communicator, max int, lib native) (network, error) {
	n := network{World: c.Size()}
	barrier := &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "netcheck"}}
	var err error
	if n.Barrier, err = timed(ctx, c, func() error { return comm.Do(ctx, c, barrier) }); err != nil {
		return n, err
	}
	for bytes := 1 << 12; bytes <= max; bytes *= 4 {
		p, err := measureSize(ctx, c, bytes, lib)
		if err != nil {
			return n, err
		}
		n.Points = append(n.Points, p)
	}
	n.fit()
	return n, nil
}

func measureSize(ctx context.Context, c comm.Communicator, bytes int, lib native) (point, error) {
	world := c.Size()
	each := bytes / 4 / world
	whole, part := make([]float32, each*world), make([]float32, each)
	p := point{Bytes: 4 * len(whole)}
	var err error
	measure := func(to *float64, f func() error) {
		if err == nil {
			*to, err = timed(ctx, c, f)
		}
	}
	bounds := evenly(len(whole), world)
	scatter := &comm.Op{Kind: comm.ReduceScatter, Sig: comm.Signature{Name: "netcheck"}, Bounds: bounds, Send: dtype.OfFloat32(whole), Recv: dtype.OfFloat32(part)}
	gather := &comm.Op{Kind: comm.AllGather, Sig: comm.Signature{Name: "netcheck"}, Bounds: bounds, Send: dtype.OfFloat32(part), Recv: dtype.OfFloat32(whole)}
	measure(&p.ReduceScatter, func() error { return comm.Do(ctx, c, scatter) })
	measure(&p.AllGather, func() error { return comm.Do(ctx, c, gather) })
	if lib != nil {
		measure(&p.NativeReduceScatter, func() error { return lib.NativeReduceScatter(whole, part) })
		measure(&p.NativeAllGather, func() error { return lib.NativeAllGather(part, whole) })
	}
	to := make([]float32, len(whole))
	measure(&p.Memcpy, func() error {
		if c.Rank() == 0 {
			copy(to, whole)
		}
		return nil
	})
	return p, err
}

// timed returns the median time of f in seconds, on this rank. It is collective: all
// ranks run f equally often.
func timed(ctx context.Context, c comm.Communicator, f func() error) (float64, error) {
	once := func() (float64, error) {
		start := time.Now()
		err := f()
		return time.Since(start).Seconds(), err
	}
	for range 2 {
		if _, err := once(); err != nil {
			return 0, err
		}
	}
	first, err := once()
	if err != nil {
		return 0, err
	}
	if first, err = slowest(ctx, c, first); err != nil { // which decides how often
		return 0, err
	}
	times := make([]float64, min(500, max(7, int(pointTime.Seconds()/first))))
	for i := range times {
		if times[i], err = once(); err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return times[len(times)/2], comm.Do(ctx, c, &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "netcheck"}})
}

// slowest returns the longest of the ranks' times.
func slowest(ctx context.Context, c comm.Communicator, seconds float64) (float64, error) {
	all, mine := dtype.Make(dtype.F64, c.Size()), dtype.Make(dtype.F64, 1)
	mine.F64[0] = seconds
	err := comm.Do(ctx, c, &comm.Op{Kind: comm.AllGather, Sig: comm.Signature{Name: "times"}, Bounds: evenly(c.Size(), c.Size()), Send: mine, Recv: all})
	return slices.Max(all.F64), err
}

// print shows the measurement and what follows from it.
func (o *checkOptions) print(n network, stdout io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "engine       %s, %d ranks\n", n.Engine, n.World)
	fmt.Fprintf(&b, "barrier      %.1f µs\n\n", 1e6*n.Barrier)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "GB/s of a buffer of\treduce-scatter\tall-gather\tnative reduce-scatter\tnative all-gather\tmemcpy\t\n")
	rate := func(p point, seconds float64) string {
		if seconds == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", float64(p.Bytes)/seconds/1e9)
	}
	for _, p := range n.Points {
		fmt.Fprintf(t, "%d KiB\t%s\t%s\t%s\t%s\t%s\t\n", p.Bytes>>10, rate(p, p.ReduceScatter), rate(p, p.AllGather), rate(p, p.NativeReduceScatter), rate(p, p.NativeAllGather), rate(p, p.Memcpy))
	}
	t.Flush()
	fmt.Fprintf(&b, "\n%s\n", n.describe())
	if o.plan != nil {
		text, err := o.stepModel(n)
		if err != nil {
			return err
		}
		b.WriteString(text)
	}
	if o.out != "" {
		raw, err := json.MarshalIndent(n, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, append(raw, '\n'), 0o666); err != nil {
			return err
		}
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}

// stepModel applies the model to the training of the configuration.
func (o *checkOptions) stepModel(n network) (string, error) {
	rows, err := o.plan.predict([]int{o.plan.cfg.ZeroOptimization.Stage}, []int{n.World})
	if err != nil {
		return "", err
	}
	r := rows[0]
	wire := o.plan.cfg.Policy().Wire.Size()
	var b strings.Builder
	if bucket := n.bucket(); n.World > 1 {
		fmt.Fprintf(&b, "bucket       reduce_bucket_size of %s elements or more keeps the latency below %d %% of a reduction; the model has %s, so at most %s leaves four to overlap\n",
			thousands(bucket/wire), latencyShare, thousands(r.plan.Elements), thousands(max(1, r.plan.Elements/4)))
	}
	s := n.step(r, compute{})
	fmt.Fprintf(&b, "step         communication of a step, nothing hidden: %.2f ms = gradients %.2f + norm %.2f + weights %.2f, in %s collectives\n",
		1e3*s.total, 1e3*s.gradients, 1e3*s.norm, 1e3*s.weights, thousands(int(r.traffic.Total().Collectives)))
	return b.String(), nil
}
