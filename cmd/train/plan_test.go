package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

func planDocument(t *testing.T, args ...string) planJSON {
	t.Helper()
	code, stdout, stderr := command(append(append([]string{"plan"}, args...), "-json")...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var doc planJSON
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	return doc
}

// TestPlanOfParams holds the prediction for a billion parameters against the sums
// on paper: 20 bytes a parameter at stage 0, and what partitioning leaves of them.
func TestPlanOfParams(t *testing.T) {
	const psi = 1 << 30
	doc := planDocument(t, "-params", fmt.Sprint(psi), "-bucket", "1e6", "-overlap", "-accum", "3")
	if len(doc.Rows) != 3*11 || doc.Parameters != psi {
		t.Fatalf("%d predictions for %d parameters", len(doc.Rows), doc.Parameters)
	}
	for _, r := range doc.Rows {
		w := int64(r.World)
		memory := []int64{2*psi + 6*psi + 12*psi, 4*psi + 4*psi/w + 12*psi/w, 2*psi + 4*psi/w + 12*psi/w}[r.Stage]
		m := r.Memory
		if got := m["total"] - m["workspace"] - m["buckets"]; got != memory {
			t.Errorf("stage %d, world %d: %d bytes, want %d", r.Stage, w, got, memory)
		}
		share := 2 * (psi - psi/w)
		gradients, weights := 3*share, share
		if r.Stage == 0 {
			gradients, weights = 3*2*psi*(w-1), 0
		}
		if got := r.Sent; got["gradients"].Bytes != gradients || got["weights"].Bytes != weights || got["gradients"].Collectives != 3*int64(r.Buckets) {
			t.Errorf("stage %d, world %d: sent %+v, want %d of gradients and %d of weights", r.Stage, w, got, gradients, weights)
		}
		if total := m["parameters"] + m["gradients"] + m["accumulators"] + m["master"] + m["moments"] + m["buckets"] + m["workspace"]; total != m["total"] {
			t.Errorf("stage %d, world %d: the kinds are %d bytes, the total %d", r.Stage, w, total, m["total"])
		}
	}
}

// TestPlanAllocatesNoModel: ten trillion parameters are planned in kilobytes.
func TestPlanAllocatesNoModel(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	doc := planDocument(t, "-params", "1e13", "-dtype", "fp32", "-optimizer", "sgd")
	runtime.ReadMemStats(&after)
	if doc.Rows[0].Memory["moments"] != 4e13 {
		t.Errorf("moments of SGD with momentum: %d bytes, want 4e13", doc.Rows[0].Memory["moments"])
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("%d bytes were allocated", took)
	}
}

// TestPlanOfConfig: the configuration's model and batch; a step has as many
// micro-batches at every world size, rounded up where ranks are many.
func TestPlanOfConfig(t *testing.T) {
	config := append([]string{"-config", writeConfig(t, "")}, tiny...)
	doc := planDocument(t, append(config, "-world", "1,2,3,16", "-stage", "2")...)
	for i, want := range []struct{ world, accum, batch int }{{1, 4, 8}, {2, 2, 8}, {3, 2, 12}, {16, 1, 32}} {
		if r := doc.Rows[i]; r.World != want.world || r.Accum != want.accum || r.Batch != want.batch || r.Stage != 2 {
			t.Errorf("%+v, want %+v at stage 2", r, want)
		}
	}
	code, stdout, stderr := command(append(append([]string{"plan"}, config...), "-world", "1,2")...)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, w := range []string{"trainable parameters, UNet2DModel [8 8]", "memory of a rank, MiB", "sent by a rank in a step, MiB", "collectives"} {
		if !strings.Contains(stdout, w) {
			t.Errorf("no %q in\n%s", w, stdout)
		}
	}
	for _, line := range strings.Split(stdout, "\n") {
		if len(line) > 120 {
			t.Errorf("line of %d columns: %q", len(line), line)
		}
	}
}

// TestTrainingAsPlanned: what a run measures is what the plan predicts.
func TestTrainingAsPlanned(t *testing.T) {
	for stage := range 3 {
		settings := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-world", "2",
			"-set", fmt.Sprintf("zero_optimization.stage=%d", stage), "-set", "bf16.enabled=true", "-set", "zero_optimization.reduce_bucket_size=5e3")
		code, stdout, stderr := command(append(settings, "-steps", "3", "-out", filepath.Join(t.TempDir(), "out"))...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		pairs := regexp.MustCompile(`(gradients|weights|norm) ([0-9.]+ MiB) \(predicted ([0-9.]+ MiB)\)`).FindAllStringSubmatch(stdout, -1)
		if len(pairs) != 3 {
			t.Fatalf("no traffic beside its prediction in\n%s", stdout)
		}
		for _, p := range pairs {
			if p[2] != p[3] {
				t.Errorf("stage %d: %s", stage, p[0])
			}
		}
		total := regexp.MustCompile(`measured on rank 0: ([0-9.]+) MiB .*; predicted ([0-9.]+) MiB`).FindStringSubmatch(stdout)
		if total == nil {
			t.Fatalf("no memory beside its prediction in\n%s", stdout)
		}
		var measured, predicted float64
		fmt.Sscan(total[1], &measured)
		fmt.Sscan(total[2], &predicted)
		const bucket = 5e3 * 2 / (1 << 20)
		if measured > predicted*1.05+bucket || measured < predicted*0.95-bucket {
			t.Errorf("stage %d: %v MiB, predicted %v", stage, measured, predicted)
		}
	}
}

func TestPlanErrors(t *testing.T) {
	config := writeConfig(t, "")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"-config", "-params"}},
		{[]string{"-params", "1e9", "-config", config}, []string{"one of"}},
		{[]string{"-params", "0"}, []string{"-params", "whole number"}},
		{[]string{"-params", "1.5"}, []string{"-params", "whole number"}},
		{[]string{"-params", "1e9", "-set", "run.steps=3"}, []string{"-set", "-config"}},
		{[]string{"-params", "1e9", "-dtype", "fp8"}, []string{"fp8", "fp32, bf16, fp16"}},
		{[]string{"-params", "1e9", "-dtype", "fp64"}, []string{"fp64", "fp32, bf16, fp16"}},
		{[]string{"-params", "1e9", "-comm-dtype", "int8"}, []string{"int8", "fp32, bf16, fp16"}},
		{[]string{"-params", "1e9", "-optimizer", "Muon"}, []string{"Muon", "AdamW"}},
		{[]string{"-params", "1e9", "-accum", "0"}, []string{"gradient_accumulation_steps = 0"}},
		{[]string{"-params", "1e9", "-world", "0"}, []string{"world size 0"}},
		{[]string{"-params", "1e9", "-world", "two"}, []string{"-world", "commas"}},
		{[]string{"-params", "1e9", "-stage", "3"}, []string{"stage = 3"}},
		{[]string{"-params", "1e9", "-bucket", "1"}, []string{"1,000,000 buckets", "reduce_bucket_size"}},
		{[]string{"-params", "1e9", "more"}, []string{`"more"`}},
		{[]string{"-config", config, "-bucket", "5"}, []string{"-bucket belongs to -params", "-set"}},
		{[]string{"-config", config}, []string{"train_batch_size"}},
		{[]string{"-config", filepath.Join(t.TempDir(), "no.toml")}, []string{"no.toml"}},
	} {
		code, stdout, stderr := command(append([]string{"plan"}, c.args...)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, %q, %q", c.args, code, stdout, stderr)
		}
		for _, w := range c.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%q: %q does not contain %q", c.args, stderr, w)
			}
		}
	}
	if code, _, stderr := command("plan", "-help"); code != 0 || !strings.Contains(stderr, "-params") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// TestTrafficLine: a skipped step's weights were not sent, and are not expected.
func TestTrafficLine(t *testing.T) {
	step := zero.Traffic{Gradients: zero.Flow{Bytes: 1 << 20, Collectives: 4}, Weights: zero.Flow{Bytes: 1 << 19, Collectives: 1}}
	sent := zero.Traffic{Gradients: zero.Flow{Bytes: 3 << 20, Collectives: 12}, Weights: zero.Flow{Bytes: 1 << 20, Collectives: 2}}
	want := "rank 0 sent gradients 3.00 MiB (predicted 3.00 MiB), weights 1.00 MiB (predicted 1.00 MiB), norm 0.00 MiB (predicted 0.00 MiB) in 14 collectives"
	if got := trafficLine(sent, step, 3, 2); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPlanLeavesNothing: a plan writes no files.
func TestPlanLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	planDocument(t, "-params", "1e6")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
