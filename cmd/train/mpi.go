package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/exchange"
	"github.com/zerogap/zerogap/zero/comm/mpi"
)

// Values of comm.engine.
const (
	engineLocal = "local"
	engineMPI   = "mpi"
)

// startTimeout is how long ranks wait for each other where no configuration says.
const startTimeout = time.Minute

// world is the number of ranks, where a launcher has decided it.
func (o options) world() config.World {
	if !o.launch.MPI() {
		return config.World{}
	}
	return config.World{Size: o.launch.Size, Origin: o.launch.Launcher}
}

// launched is where warnings of the configuration go: rank 0 has them too.
func (o options) launched(stderr io.Writer) io.Writer {
	if o.launch.Rank > 0 {
		return io.Discard
	}
	return stderr
}

// checkLaunch refuses what would start as many trainings as there are processes.
func checkLaunch(c *config.Config, l mpi.Launch) error {
	if c.Comm.Engine == engineLocal {
		if l.MPI() && l.Size > 1 {
			return fmt.Errorf("comm.engine = %q: %s has started %d processes, and each would train by itself: leave the key out, or start without the launcher", engineLocal, l.Launcher, l.Size)
		}
		return nil
	}
	return l.Check()
}

// trainMPI is the training of a process that is one rank. prepared is the error of
// preparing j.
func trainMPI(o options, j *job, prepared error, stdout, stderr io.Writer) error {
	if prepared == nil && j.cfg.Comm.Engine == engineLocal { // of one process
		return supervise(j, o, stderr)
	}
	library, timeout := "auto", startTimeout
	if prepared == nil {
		library, timeout = j.cfg.Comm.Library, time.Duration(j.cfg.Comm.TimeoutMS)*time.Millisecond
	}
	c, err := mpi.Connect(mpi.Options{Library: library, Launch: o.launch, Timeout: timeout})
	if err != nil {
		err = errors.Join(prepared, err, removeOut(j))
		if o.launch.LocalRank > 0 { // the first rank of this machine says it
			return silent{usageError{err}}
		}
		return usageError{err}
	}
	if err := agreeOnStart(c, j, prepared); err != nil {
		return endTogether(c, j, err, stderr)
	}
	return j.trainAsRank(o, c, stdout, stderr)
}

// silent is an error that has been printed, or that another rank prints.
type silent struct{ error }

func (s silent) Unwrap() error { return s.error }

// endTogether ends a job that has not begun, with the error that all ranks have. Rank
// 0 prints it before any rank ends: a launcher kills the others when the first does.
func endTogether(c *mpi.Comm, j *job, err error, stderr io.Writer) error {
	if c.Rank() == 0 {
		err = errors.Join(err, removeOut(j))
		printError(stderr, err)
	}
	if closeErr := c.Close(); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	return silent{err}
}

// removeOut removes the output folder of a job that has not begun, if this process has
// made one. There is nothing in it but the configuration.
func removeOut(j *job) error {
	if j == nil {
		return nil
	}
	err := j.release()
	if !j.made {
		return err
	}
	return errors.Join(err, os.RemoveAll(j.out))
}

// trainAsRank runs this process's rank. Rank 0 prints; the others write to a file.
// After a failure it ends the process, and with it the job.
func (j *job) trainAsRank(o options, c *mpi.Comm, stdout, stderr io.Writer) error {
	j.mpi = c
	errs := stderr
	if j.follows() {
		log, err := j.openLog()
		if err != nil {
			c.Abort(err)
			fmt.Fprintf(stderr, "train: rank %d: %v\n", c.Rank(), err)
			return errors.Join(err, c.Close())
		}
		defer log.Close()
		j.addr, j.quiet, j.stdout, errs = "", true, log, log
	}
	err := supervise(j, o, stderr)
	if err == nil {
		return c.Close()
	}
	c.Abort(err) // if it is not known yet
	for _, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintf(errs, "train: rank %d: %s\n", c.Rank(), line)
		if errs != stderr && j.ownFailure(err) {
			fmt.Fprintf(stderr, "train: rank %d: %s\n", c.Rank(), line)
		}
	}
	if err := c.Close(); err != nil {
		fmt.Fprintf(errs, "train: rank %d: %v\n", c.Rank(), err)
	}
	code := exitFailed
	if errors.Is(err, exchange.ErrLost) {
		code = mpi.ExitFailed
	}
	c.Exit(code)
	return nil // not reached
}

// ownFailure reports whether an error began with this rank, and was not told to it.
func (j *job) ownFailure(err error) bool {
	var peer *comm.RankError
	return !errors.As(err, &peer) || peer.Rank == j.mpi.Rank()
}

// follows reports whether this process leaves printing and monitors to another.
func (j *job) follows() bool { return j.mpi != nil && j.mpi.Rank() > 0 }

// suffix tells the files of the ranks apart.
func (j *job) suffix() string {
	if !j.follows() {
		return ""
	}
	return fmt.Sprintf(".rank-%d", j.mpi.Rank())
}

// openLog is where a rank that follows writes to. The folder may be another one on
// each machine.
func (j *job) openLog() (*os.File, error) {
	dir := filepath.Join(j.out, "logs")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("folder of the logs: %w", err)
	}
	return os.Create(filepath.Join(dir, fmt.Sprintf("rank-%d.log", j.mpi.Rank())))
}

// describeEngine is for the header.
func (j *job) describeEngine() string {
	if j.mpi == nil {
		return fmt.Sprintf("%s, %d ranks as goroutines", engineLocal, j.cfg.Comm.World)
	}
	return fmt.Sprintf("%s, rank %d of %d, %s", engineMPI, j.mpi.Rank(), j.mpi.Size(), j.mpi.Library())
}

// interrupts is where what a signal makes known is written: by rank 0, and by a rank
// that waits in vain, which the launcher is often about to kill for it.
func (j *job) interrupts(stderr io.Writer) io.Writer {
	if j.mpi == nil {
		return stderr
	}
	return &interruptWriter{j, stderr}
}

type interruptWriter struct {
	*job
	stderr io.Writer
}

// Write implements io.Writer.
func (w *interruptWriter) Write(b []byte) (int, error) {
	if waiting := w.mpi.Waiting(); waiting != "" {
		if _, err := fmt.Fprintf(w.stderr, "train: rank %d: told to end while waiting in %s\n", w.mpi.Rank(), waiting); err != nil {
			return 0, err
		}
	}
	if w.follows() {
		return w.stdout.Write(b)
	}
	return w.stderr.Write(b)
}

// runRank runs f as the rank of c. A panic is an error, and the other ranks are told
// of both.
func runRank(ctx context.Context, c comm.Communicator, f func(context.Context, comm.Communicator) error) (err error) {
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
