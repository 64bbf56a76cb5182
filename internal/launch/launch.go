//go:build unix

// Package launch starts programs under the MPI launchers of this machine, for tests.
package launch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Launcher is an mpirun.
type Launcher struct {
	Family string // openmpi, mpich
	Path   string
}

// Find returns the launchers that are installed, at most one of a family. Without any
// it skips the test, or fails it where CI is set: there they are to be installed.
func Find(t testing.TB) []Launcher {
	t.Helper()
	var found []Launcher
	seen := map[string]bool{}
	for _, name := range []string{"mpirun.openmpi", "mpirun.mpich", "mpirun", "mpiexec.hydra"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		family := familyOf(path)
		if family != "" && !seen[family] {
			seen[family] = true
			found = append(found, Launcher{family, path})
		}
	}
	if len(found) == 0 {
		const what = "no mpirun: apt-get install openmpi-bin mpich"
		if os.Getenv("CI") == "true" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	return found
}

func familyOf(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	switch {
	case err != nil:
		return ""
	case bytes.Contains(out, []byte("Open MPI")):
		return "openmpi"
	case bytes.Contains(out, []byte("HYDRA")):
		return "mpich"
	}
	return ""
}

// Command is a program that is started on n ranks.
type Command struct {
	Ranks   int
	Timeout time.Duration // after it all is killed
	Env     []string      // NAME=value, for the ranks
	Args    []string      // the program and its arguments
	// Started is called with the launcher's process, if it is set.
	Started func(pid int)
}

// Result is what came of it.
type Result struct {
	Code     int // exit code of the launcher, -1 when it was killed
	Stdout   string
	Stderr   string
	Took     time.Duration
	TimedOut bool
	// Wedged says that the launcher stayed for ten seconds after all of its processes
	// had ended, and was killed: Open MPI 4.1.4's does so now and then after an abort.
	Wedged bool
}

// String is for messages.
func (r Result) String() string {
	return fmt.Sprintf("exit code %d after %v, timed out %v\nstdout:\n%s\nstderr:\n%s", r.Code, r.Took.Round(time.Millisecond), r.TimedOut, r.Stdout, r.Stderr)
}

// Run starts the command and waits for its end. Whatever it has started is gone
// afterwards.
func (l Launcher) Run(t testing.TB, c Command) Result {
	t.Helper()
	args := []string{"-np", fmt.Sprint(c.Ranks)}
	if l.Family == "openmpi" {
		args = append(args, "--oversubscribe", "--bind-to", "none")
	}
	cmd := exec.Command(l.Path, append(args, c.Args...)...)
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	cmd.Env = append(cmd.Env, c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if c.Started != nil {
		go c.Started(cmd.Process.Pid)
	}
	var r Result
	timer := time.AfterFunc(c.Timeout, func() { r.TimedOut = true; kill(cmd.Process.Pid) })
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		r.Wedged = watch(cmd.Process.Pid, ended)
	}()
	err := cmd.Wait()
	close(ended)
	<-watched
	timer.Stop()
	kill(cmd.Process.Pid)
	r.Took, r.Stdout, r.Stderr = time.Since(start), stdout.String(), stderr.String()
	if r.Code = cmd.ProcessState.ExitCode(); err != nil && r.Code == 0 {
		r.Code = -1
	}
	return r
}

// watch kills a launcher that stays when all of its processes have ended, and reports
// whether it did.
func watch(launcher int, ended <-chan struct{}) bool {
	const patience = 10 // seconds
	for alone := 0; ; {
		select {
		case <-ended:
			return false
		case <-time.After(time.Second):
		}
		if alone++; !allEnded(launcher) {
			alone = 0
		}
		if alone >= patience {
			kill(launcher)
			return true
		}
	}
}

// allEnded reports whether a process has children, and none but such that have ended
// and wait to be asked for their exit codes. Where there is no /proc it never does.
func allEnded(parent int) bool {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil || len(bytes.Fields(children)) == 0 {
		return false
	}
	for _, pid := range bytes.Fields(children) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
		if err != nil {
			continue // gone
		}
		if _, state, ok := bytes.Cut(stat, []byte(") ")); !ok || state[0] != 'Z' {
			return false
		}
	}
	return true
}

// kill ends a process group. That it has none left is the usual case.
func kill(group int) { _ = syscall.Kill(-group, syscall.SIGKILL) }
