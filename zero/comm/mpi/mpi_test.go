//go:build linux && (amd64 || arm64)

package mpi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/internal/launch"
	"github.com/zerogap/zerogap/zero/comm/commtest"
)

// The test binary runs itself under the launchers. A process that is a rank finds
// in its environment which cases to run, and where to write what came of them.
const (
	envCase = "ZEROGAP_TEST_CASE" // of commtest, or "all" of those that break nothing
	envOut  = "ZEROGAP_TEST_OUT"
	envMax  = "ZEROGAP_TEST_MAX"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envCase); name != "" {
		rank(name)
	}
	if fault := os.Getenv(envTrain); fault != "" {
		trainRank(fault)
	}
	os.Exit(m.Run())
}

// rank is the whole program of a rank.
func rank(name string) {
	c, err := Connect(Options{Launch: Detect(os.Getenv), Timeout: commtest.Timeout})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var max int
	fmt.Sscan(os.Getenv(envMax), &max)
	report, broken := crash(), false
	for _, k := range commtest.Cases() {
		if k.Name != name && (name != "all" || k.Breaks) || c.Size() < k.World {
			continue
		}
		verdict := "ok"
		start := time.Now()
		if err := k.Rank(c, commtest.Options{MaxBytes: max}); err != nil {
			verdict = err.Error()
		}
		report += fmt.Sprintf("%s: %s (%v)\n", k.Name, verdict, time.Since(start).Round(time.Millisecond))
		broken = broken || k.Breaks
	}
	report += fmt.Sprintf("rank %d of %d with %s\n", c.Rank(), c.Size(), c.Library())
	if err := os.WriteFile(filepath.Join(os.Getenv(envOut), fmt.Sprint(c.Rank())), []byte(report), 0o666); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := c.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if broken {
		c.Exit(ExitFailed)
	}
	os.Exit(0)
}

// crash: an invalid memory access is still a panic that can be recovered from, although
// libraries under MPI like to handle the signal.
func crash() (verdict string) {
	defer func() {
		if recover() != nil {
			verdict = "recovery: ok (0s)\n"
		}
	}()
	var p *int
	*p = 1
	return "recovery: a nil pointer was written to without a panic\n"
}

// start runs cases on world ranks and returns the ranks' reports.
func start(t *testing.T, l launch.Launcher, world int, name string, max int) ([]string, launch.Result) {
	t.Helper()
	dir := t.TempDir()
	r := l.Run(t, launch.Command{
		Ranks: world, Timeout: 5 * time.Minute, Args: []string{os.Args[0]},
		Env: []string{envCase + "=" + name, envOut + "=" + dir, fmt.Sprintf("%s=%d", envMax, max), "GORACE=exitcode=66"},
	})
	reports := make([]string, world)
	for k := range reports {
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(k)))
		if err != nil {
			t.Errorf("rank %d wrote no report: %v", k, r)
			continue
		}
		reports[k] = string(raw)
	}
	return reports, r
}

// verify fails the test for every line that is not ok.
func verify(t *testing.T, reports []string) {
	t.Helper()
	for k, report := range reports {
		for _, line := range strings.Split(strings.TrimSpace(report), "\n") {
			if !strings.Contains(line, ": ok (") && !strings.HasPrefix(line, "rank ") {
				t.Errorf("rank %d: %s", k, line)
			}
		}
		if k == 0 && testing.Verbose() {
			t.Log(report)
		}
	}
}

// TestConformance runs the suite under every launcher.
func TestConformance(t *testing.T) {
	max, worlds := 64<<20, []int{1, 2, 3, 4}
	if testing.Short() {
		max, worlds = 300_000, []int{2}
	}
	for _, l := range launch.Find(t) {
		for _, world := range worlds {
			t.Run(fmt.Sprintf("%s/ranks=%d", l.Family, world), func(t *testing.T) {
				reports, r := start(t, l, world, "all", max)
				verify(t, reports)
				if r.Code != 0 {
					t.Errorf("%v", r)
				}
			})
		}
	}
}

// TestFailures runs the cases that break their communicator, each in a job of its
// own: all ranks see what they should, and the job ends with the code for it.
func TestFailures(t *testing.T) {
	worlds := []int{2, 3}
	if testing.Short() {
		worlds = []int{2}
	}
	for _, l := range launch.Find(t) {
		for _, c := range commtest.Cases() {
			for _, world := range worlds {
				if !c.Breaks || world < c.World || testing.Short() && !strings.Contains(c.Name, "bucket") {
					continue
				}
				t.Run(fmt.Sprintf("%s/ranks=%d/%s", l.Family, world, c.Name), func(t *testing.T) {
					reports, r := start(t, l, world, c.Name, 0)
					verify(t, reports)
					if r.Code == 0 || r.TimedOut {
						t.Errorf("%v", r)
					}
				})
			}
		}
	}
}
