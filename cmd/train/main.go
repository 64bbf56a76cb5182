// Command train trains a diffusion UNet with the ZeRO optimizer.
//
//	train -config configs/zero2.toml [-set key=value]... [-steps N] [-out DIR] [-world N] [-quiet] [-web :0] [-trace STEP] [-resume auto|TAG|PATH]
//	train -resume auto|TAG -out DIR | -resume PATH [...]
//	train config -list [WORD] | -show -config configs/zero2.toml [-set key=value]...
//	train plan -config configs/zero2.toml [-set key=value]... | -params N [-dtype bf16]... [-json] [-net FILE]...
//	train sample|eval -checkpoint RUN | -model DIR [...]
//	train export -checkpoint RUN -out DIR [-format diffusers|fp32]
//	train inspect RUN|CHECKPOINT
//	train compare [-out FILE.html] DIR...
//	train bisect -a FILE -b FILE | -record DIR | -against DIR [...]
//	train gap -out DIR [-quick]
//	train netcheck [-config FILE] [-out FILE]
//
// Without a command train prints what will run, trains all ranks in this process, or
// the one rank that this process is under mpirun and srun, and leaves in the output folder the effective configuration, CSV curves, a plot of
// the loss, grids of generated pictures, the network and checkpoints. Ctrl-C stops at
// the end of the running step, saves a checkpoint and still draws the final pictures;
// a second Ctrl-C stops at once. SIGTERM saves a checkpoint and draws nothing.
//
// -resume goes on from a checkpoint, bit for bit as if the run had never stopped, at
// any world size: from the last good one of the run's folder (auto; a run that has none
// begins anew), from the one with a tag, or from one at a path.
//
// config lists the configuration keys, or shows what a file comes to. plan predicts
// memory, traffic and time of a rank for every stage and many world sizes; it allocates
// and runs nothing. sample draws pictures, eval measures a network, export hands it to
// other programs, inspect looks into checkpoints. compare puts curves on one page, bisect
// finds where two trainings first differ, gap trains the runs of a convergence gap.
// netcheck measures the communication of the ranks it is started on.
//
// Exit codes: 0 done or stopped by the user, 1 the run failed, 2 the command
// line or the configuration is wrong, 75 communication between processes failed: the
// run is worth starting again from its last checkpoint.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/zerogap/zerogap/zero/comm/mpi"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the command line, parsed.
type options struct {
	config  string
	sets    repeated
	steps   int
	out     string
	ranks   int
	quiet   bool
	web     string
	resume  string
	profile string
	trace   int

	launch mpi.Launch // how the process was started
}

// repeated is a flag that may be given more than once.
type repeated []string

func (r *repeated) String() string { return strings.Join(*r, " ") }

func (r *repeated) Set(s string) error {
	*r = append(*r, s)
	return nil
}

// usageError marks what is wrong with the command line or the configuration.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func run(args []string, stdout, stderr io.Writer) int {
	err := dispatch(args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, new(silent)):
		return exitCode(err)
	}
	printError(stderr, err)
	return exitCode(err)
}

func printError(stderr io.Writer, err error) {
	text := err.Error()
	if errors.Is(err, syscall.ENOSPC) {
		text += ": free some space, or choose another folder with -out"
	}
	for _, line := range strings.Split(text, "\n") {
		fmt.Fprintf(stderr, "train: %s\n", line)
	}
}

func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailed
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by run
	f.StringVar(&o.config, "config", "", "configuration `file`: .toml, .yaml or .json")
	f.Var(&o.sets, "set", "`key=value` overrides a configuration key, such as zero_optimization.reduce_bucket_size=1000; may be repeated")
	f.IntVar(&o.steps, "steps", 0, "number of optimizer steps, instead of run.steps")
	f.StringVar(&o.out, "out", "", "output `folder`, instead of run.out")
	f.IntVar(&o.ranks, "world", 0, "number of ranks, instead of comm.world")
	f.BoolVar(&o.quiet, "quiet", false, "print only warnings and errors")
	f.StringVar(&o.web, "web", "", "serve a page with live curves and samples at `address` on this machine, such as :8080, or :0 for a free port")
	f.StringVar(&o.resume, "resume", "", "go on from a checkpoint: auto (the run's last good one), a tag such as step-000200, or a `path`; without -config, with the run's own configuration")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile to `file`, for go tool pprof")
	f.IntVar(&o.trace, "trace", 0, "write a trace of optimizer step `STEP` of all ranks, instead of run.trace_step, to trace.json in the output folder, for https://ui.perfetto.dev")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stderr)
		f.Usage()
		return o, err
	case err != nil:
		return o, usageError{fmt.Errorf("%w (train -help lists the flags)", err)}
	case f.NArg() > 0:
		return o, usageError{fmt.Errorf("unexpected argument %q: options begin with a dash, such as -config configs/zero2.toml", f.Arg(0))}
	case o.config == "" && o.resume == "":
		return o, usageError{errors.New("no configuration: give one with -config, for example -config configs/zero2.toml")}
	}
	// Named flags win over -set: they come last.
	f.Visit(func(fl *flag.Flag) {
		switch fl.Name {
		case "steps":
			o.sets = append(o.sets, fmt.Sprintf("run.steps=%d", o.steps))
		case "out":
			o.sets = append(o.sets, fmt.Sprintf("run.out=%q", o.out))
		case "trace":
			o.sets = append(o.sets, fmt.Sprintf("run.trace_step=%d", o.trace))
		case "world":
			o.sets = append(o.sets, fmt.Sprintf("comm.world=%d", o.ranks))
		}
	})
	return o, nil
}

// train runs the job in this process, or this process's rank of it.
func train(o options, stdout, stderr io.Writer) error {
	o.launch = mpi.Detect(os.Getenv)
	j, err := prepare(o, stdout, o.launched(stderr))
	if o.launch.MPI() || err == nil && j.cfg.Comm.Engine == engineMPI {
		return trainMPI(o, j, err, stdout, stderr)
	}
	if err != nil {
		return err
	}
	return supervise(j, o, stderr)
}

// supervise runs the job with signals and the profile around it.
func supervise(j *job, o options, stderr io.Writer) (err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer onInterrupt(&j.halt, cancel, func(text string) { j.notify(j.interrupts(stderr), text) })()
	if o.profile != "" {
		f, err := os.Create(o.profile + j.suffix())
		if err != nil {
			return usageError{fmt.Errorf("-cpuprofile: %w", err)}
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(err, f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	return j.run(ctx)
}

// halt is what the user has asked for by a signal.
type halt struct {
	stop  atomic.Bool // end the run after this step
	hurry atomic.Bool // and without pictures
}

// onInterrupt makes the first Ctrl-C or SIGTERM ask for a stop at the end of
// the running step and the second end the run at once; notify tells the user so. The
// returned function ends the watch.
func onInterrupt(h *halt, cancel context.CancelCauseFunc, notify func(string)) func() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				if s == syscall.SIGTERM {
					h.hurry.Store(true)
				}
				if h.stop.Swap(true) {
					cancel(errors.New("interrupted"))
					return
				}
				notify("train: saving at the end of this step; once more stops at once")
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
