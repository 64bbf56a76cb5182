package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/internal/profile"
)

// counted are the columns of a profile that hold no times.
var counted = regexp.MustCompile(`(?m)^ +(forward|recompute|backward) +([\d,]+) +([\d,]+) `)

// countsOf returns MACs and FLOPs of the passes in a profile.
func countsOf(t *testing.T, text string) map[string]string {
	t.Helper()
	counts := map[string]string{}
	for _, m := range counted.FindAllStringSubmatch(text, -1) {
		counts[m[1]] = m[2] + " MACs, " + m[3] + " FLOPs"
	}
	if len(counts) != 3 || strings.Count(text, "FLOPs profile of step") != 1 {
		t.Fatalf("not one profile:\n%s", text)
	}
	return counts
}

// weights are the bytes of the trained network.
func weights(t *testing.T, out string) string {
	t.Helper()
	return read(t, filepath.Join(out, "unet", "diffusion_pytorch_model.safetensors"))
}

// TestFlopsProfile: the counts do not depend on the step, on steps before it or on
// checkpointing; what is computed again stands apart; only rank 0 writes; and the
// training keeps its bits.
func TestFlopsProfile(t *testing.T) {
	defer goleak.VerifyNone(t)
	base := []string{"-steps", "6", "-world", "2", "-set", "zero_optimization.stage=2"}
	plain := trainTiny(t, base...)
	profiled := func(step int, more ...string) map[string]string {
		file := filepath.Join(t.TempDir(), "flops.txt")
		args := append(base, "-set", "flops_profiler.enabled=true", "-set", fmt.Sprintf("flops_profiler.profile_step=%d", step),
			"-set", "flops_profiler.output_file="+file)
		out := trainTiny(t, append(args, more...)...)
		if curve(t, out) != curve(t, plain) || weights(t, out) != weights(t, plain) {
			t.Errorf("step %d, %v: profiling changed the training", step, more)
		}
		text := read(t, file)
		if !strings.Contains(text, fmt.Sprintf("step %d, one rank, 2 micro-batches of 2 samples", step)) {
			t.Errorf("step %d: %s", step, text)
		}
		return countsOf(t, text)
	}
	want := profiled(3)
	if want["recompute"] != "0 MACs, 0 FLOPs" || strings.HasPrefix(want["forward"], "0 ") || strings.HasPrefix(want["backward"], "0 ") {
		t.Errorf("without checkpointing: %v", want)
	}
	if got := profiled(5); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("at step 5 %v, at step 3 %v", got, want)
	}
	for _, mode := range []string{"reentrant", "non_reentrant"} {
		got := profiled(3, "-set", "model.activation_checkpointing.mode="+mode)
		if got["forward"] != want["forward"] || got["backward"] != want["backward"] || got["recompute"] == want["recompute"] {
			t.Errorf("with checkpointing %v, without %v", got, want)
		}
	}
}

// TestFlopsProfileOnStandardOutput, and what is said of a step that never came.
func TestFlopsProfileOnStandardOutput(t *testing.T) {
	run := func(step string, more ...string) string {
		args := append([]string{"-config", writeConfig(t, ""), "-out", filepath.Join(t.TempDir(), "out"), "-steps", "2", "-world", "2",
			"-set", "flops_profiler.enabled=true", "-set", "flops_profiler.profile_step=" + step}, tiny...)
		code, stdout, stderr := command(append(args, more...)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return stdout
	}
	countsOf(t, run("2"))
	if s := run("2", "-quiet"); s != "" {
		t.Errorf("a quiet run prints %q", s)
	}
	if s := run("3", "-trace", "7"); !strings.Contains(s, "flops_profiler.profile_step = 3: the run ended before") || !strings.Contains(s, "run.trace_step = 7: the run ended before") {
		t.Errorf("nothing is said of the step that did not come:\n%s", s)
	}
	args := append([]string{"-config", writeConfig(t, ""), "-out", filepath.Join(t.TempDir(), "out"), "-steps", "1",
		"-set", "flops_profiler.enabled=true", "-set", "flops_profiler.output_file=" + filepath.Join(t.TempDir(), "no", "such", "file")}, tiny...)
	if code, stdout, stderr := command(args...); code == 0 || strings.Contains(stdout, "step 1") || !strings.Contains(stderr, "flops_profiler.output_file") {
		t.Errorf("a file that cannot be written: exit code %d, %s", code, stderr)
	}
}

// traced trains and returns the trace of step 3, in which all ranks are warm.
func traced(t *testing.T, args ...string) (out string, events []profile.Event) {
	t.Helper()
	out = trainTiny(t, append([]string{"-steps", "4", "-world", "2", "-trace", "3", "-set", "zero_optimization.stage=2",
		"-set", "zero_optimization.reduce_bucket_size=1000"}, args...)...)
	raw, err := os.ReadFile(filepath.Join(out, "trace.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []profile.Event `json:"traceEvents"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return out, file.TraceEvents
}

// overlapping counts the buckets of a rank that were on the wire while an operation
// of the same rank ran.
func overlapping(events []profile.Event, rank int) (buckets, overlapping int) {
	for _, c := range events {
		if c.Rank != rank || c.Lane != profile.Communication || !strings.HasPrefix(c.Name, "gradient bucket ") {
			continue
		}
		buckets++
		for _, e := range events {
			if e.Rank == rank && e.Lane == profile.Compute && e.Cat == "backward" && e.Start < c.Start+c.Took && c.Start < e.Start+e.Took {
				overlapping++
				break
			}
		}
	}
	return buckets, overlapping
}

// TestTrace: ranks and lanes have rows, phases hold their operations, buckets have
// names; with overlap_comm gradients travel while the backward pass computes, and
// without they do not.
func TestTrace(t *testing.T) {
	defer goleak.VerifyNone(t)
	plain := trainTiny(t, "-steps", "4", "-world", "2")
	for _, overlap := range []bool{true, false} {
		out, events := traced(t, "-set", fmt.Sprintf("zero_optimization.overlap_comm=%v", overlap), "-set", "model.activation_checkpointing.mode=reentrant")
		if curve(t, out) != curve(t, plain) || weights(t, out) != weights(t, plain) {
			t.Error("tracing changed the training")
		}
		for rank := range 2 {
			buckets, over := overlapping(events, rank)
			if buckets < 4 || overlap && over == 0 || !overlap && over > 0 {
				t.Errorf("overlap_comm %v, rank %d: %d of %d buckets travel during operations", overlap, rank, over, buckets)
			}
			checkRank(t, events, rank)
		}
	}
}

// checkRank looks for what every rank's rows hold.
func checkRank(t *testing.T, events []profile.Event, rank int) {
	t.Helper()
	first := func(name string) (profile.Event, bool) {
		for _, e := range events {
			if e.Rank == rank && e.Name == name {
				return e, true
			}
		}
		t.Errorf("rank %d: no %s", rank, name)
		return profile.Event{}, false
	}
	for _, name := range []string{"process_name", "thread_name", "data", "forward", "backward", "reduce", "step", "losses",
		"gradient bucket 0", "norm block sums", "weights 0", "Conv2d conv_in", "MSELoss"} {
		first(name)
	}
	for _, e := range events {
		if e.Start < 0 || e.Took < 0 || e.Phase == "X" && e.Cat == "" {
			t.Errorf("%+v", e)
		}
		if e.Rank != rank || e.Cat != "recompute" {
			continue
		}
		inside := false
		for _, p := range events {
			inside = inside || p.Rank == rank && p.Name == "backward" && p.Start <= e.Start && e.Start+e.Took <= p.Start+p.Took+0.002
		}
		if !inside {
			t.Errorf("rank %d: %s is computed again outside a backward phase", rank, e.Name)
		}
	}
}
