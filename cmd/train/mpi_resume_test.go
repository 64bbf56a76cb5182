//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/internal/launch"
)

// TestResumeAcrossEngines: a training begun by goroutines goes on as processes, at
// another world size, and again as goroutines, with the bits of one that never stopped.
func TestResumeAcrossEngines(t *testing.T) {
	args := append(average, "-set", "bf16.enabled=true", "-set", "zero_optimization.stage=2", "-set", "run.checkpoint_every=1")
	want := everything(t, trainTiny(t, append(args, "-steps", "6", "-world", "1")...), 6)
	for _, l := range launch.Find(t) {
		out := trainTiny(t, append(args, "-steps", "2", "-world", "4")...)
		if r := mpirun(t, l, 2, "-resume", "auto", "-out", out, "-steps", "4"); r.Code != 0 {
			t.Fatal(r)
		}
		goOn(t, out, "-steps", "6", "-world", "1")
		if everything(t, out, 6) != want {
			t.Errorf("%s: other bits than the training that never stopped", l.Family)
		}
	}
}

// TestResumeRefusedLeavesTheRunAlone: a mistake found by one process does not cost the
// run that was to go on.
func TestResumeRefusedLeavesTheRunAlone(t *testing.T) {
	out := trainTiny(t, "-steps", "2")
	before := everything(t, out, 2)
	for _, l := range launch.Find(t) {
		r := l.Run(t, launch.Command{Ranks: 2, Timeout: 2 * time.Minute, Args: []string{"sh", "-c", fmt.Sprintf(
			`[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] && more="-set run.seed=9"; exec "$0" -resume auto -out %s -steps 4 $more`, out), os.Args[0]}, Env: []string{envRank + "=1"}})
		if r.Code == 0 || !strings.Contains(r.Stderr+r.Stdout, "different configurations") {
			t.Errorf("%s: %v", l.Family, r)
		}
		if everything(t, out, 2) != before {
			t.Fatalf("%s: the run was changed", l.Family)
		}
		if logs, _ := filepath.Glob(filepath.Join(out, "checkpoints", "step-*")); len(logs) != 1 {
			t.Errorf("%s: checkpoints %v", l.Family, logs)
		}
	}
}
