package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/zero/checkpoint"
)

// everything is what a run leaves that must not depend on its having been stopped:
// curves, network, last grid, and the arrays of its last checkpoint.
func everything(t *testing.T, out string, step int) string {
	t.Helper()
	all := curve(t, out) + read(t, filepath.Join(out, "csv", "job", "Train_Samples_skipped_steps.csv"))
	all += read(t, filepath.Join(out, networkDir, "diffusion_pytorch_model.safetensors"))
	all += read(t, filepath.Join(out, samplesDir, fmt.Sprintf("step-%06d.png", step)))
	f, err := checkpoint.OpenVerified(filepath.Join(out, checkpointsDir, checkpoint.StepTag(step)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Manifest().Params {
		master, err := f.Master(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		all += fmt.Sprint(p.Name, master)
		for _, key := range p.States {
			state, err := f.State(p.Name, key)
			if err != nil {
				t.Fatal(err)
			}
			all += fmt.Sprint(key, state)
		}
	}
	progress, err := json.Marshal(f.Manifest().Progress)
	if err != nil {
		t.Fatal(err)
	}
	return all + string(progress)
}

// average turns the moving average on, and evaluation often.
var average = []string{"-set", "diffusion.ema_decay=0.9", "-set", "run.eval_every=2", "-set", "model.dropout=0.1"}

// goOn resumes the run in out.
func goOn(t *testing.T, out string, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := command(append([]string{"-resume", "auto", "-out", out}, args...)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	return stdout, stderr
}

// A training of 64 pictures in batches of 8 is stopped in its second pass over them,
// at steps that it evaluates at anyway: a stop adds a look at the network, no more.
func TestResumedIsAsNeverStopped(t *testing.T) {
	dtypes, worlds := []string{"", "bf16", "fp16"}, []string{"1", "2", "4"}
	if testing.Short() {
		dtypes, worlds = []string{"bf16"}, []string{"4"}
	}
	for _, dtype := range dtypes {
		args := slices.Clone(average)
		if dtype != "" {
			args = append(args, "-set", dtype+".enabled=true")
		}
		want := everything(t, trainTiny(t, append(args, "-steps", "13", "-world", "2")...), 13)
		for _, world := range worlds {
			for _, async := range []string{"true", "false"} {
				out := trainTiny(t, append(args, "-steps", "10", "-world", "2", "-set", "run.checkpoint_every=3", "-set", "run.checkpoint_async="+async)...)
				stage := fmt.Sprintf("zero_optimization.stage=%d", len(world+async)%3)
				goOn(t, out, "-steps", "12", "-world", world, "-set", stage, "-set", "zero_optimization.reduce_bucket_size=777")
				goOn(t, out, "-steps", "13", "-world", "1")
				if everything(t, out, 13) != want {
					t.Errorf("%s, resumed at world %s, %s, async %s: not what a run gives that never stopped", dtype, world, stage, async)
				}
			}
		}
	}
}

// startTiny starts the tiny training and waits for its second step.
func startTiny(t *testing.T, args ...string) (done chan int, stdout, stderr *lockedBuffer) {
	t.Helper()
	all := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-set", "steps_per_print=1")
	stdout, stderr, done = &lockedBuffer{}, &lockedBuffer{}, make(chan int, 1)
	go func() { done <- run(append(all, args...), stdout, stderr) }()
	for !strings.Contains(stdout.String(), "step      2/100000") {
		select {
		case code := <-done:
			t.Fatalf("ended with code %d: %s", code, stderr.String())
		case <-time.After(time.Millisecond):
		}
	}
	return done, stdout, stderr
}

func TestTerminationSavesAndDrawsNothing(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := filepath.Join(t.TempDir(), "out")
	// A run that is told to hurry leaves a look at the network out, so none but the last counts.
	args := append(slices.Clone(average), "-set", "run.eval_every=0")
	done, stdout, stderr := startTiny(t, append(args, "-out", out, "-world", "2", "-steps", "100000")...)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if want := "go on with train -resume auto -out " + out; !strings.Contains(stdout.String(), want) {
		t.Errorf("the summary lacks %q:\n%s", want, stdout.String())
	}
	if grids, _ := os.ReadDir(filepath.Join(out, samplesDir)); len(grids) > 0 {
		t.Errorf("there are %d pictures", len(grids))
	}
	f, _, err := checkpoint.Find(filepath.Join(out, checkpointsDir))
	if err != nil {
		t.Fatal(err)
	}
	steps := f.Step() + 2
	f.Close()
	goOn(t, out, "-steps", fmt.Sprint(steps), "-world", "4")
	if everything(t, out, steps) != everything(t, trainTiny(t, append(args, "-world", "1", "-steps", fmt.Sprint(steps))...), steps) {
		t.Error("the run that was terminated and resumed is not what one gives that never stopped")
	}
}

// A checkpoint that cannot be written costs a warning, and the run's last one counts.
func TestTrainingOutlivesAFullDisk(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := filepath.Join(t.TempDir(), "out")
	done, stdout, stderr := startTiny(t, "-out", out, "-world", "2", "-steps", "100000", "-set", "run.checkpoint_every=1000")
	dir := filepath.Join(out, checkpointsDir)
	if err := os.WriteFile(dir, nil, 0o666); err != nil { // a file in the place of the folder
		t.Fatal(err)
	}
	for !strings.Contains(stdout.String(), "the training goes on") {
		select {
		case code := <-done:
			t.Fatalf("ended with code %d: %s", code, stderr.String())
		case <-time.After(time.Millisecond):
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	f, _, err := checkpoint.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestResumeTakesTheLastGoodCheckpoint(t *testing.T) {
	out := trainTiny(t, "-steps", "4", "-set", "run.checkpoint_every=2")
	want := everything(t, out, 4)
	weights := filepath.Join(out, checkpointsDir, checkpoint.StepTag(4), "weights-00000-of-00001.safetensors")
	raw := []byte(read(t, weights))
	raw[len(raw)-3] ^= 1
	if err := os.WriteFile(weights, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	stdout, stderr := goOn(t, out, "-steps", "4")
	if !strings.Contains(stderr, weights) || !strings.Contains(stdout, "goes on after step 2") {
		t.Errorf("stderr %q should name %s, and stdout say where it goes on:\n%s", stderr, weights, stdout)
	}
	if everything(t, out, 4) != want {
		t.Error("the repaired run differs from the first")
	}
	if stdout, _ := goOn(t, out); !strings.Contains(stdout, "nothing to do") {
		t.Errorf("a run at its end says %q", stdout)
	}
}

// A restart loop gives the same command every time, the first time too, and after the
// run was killed before its first checkpoint.
func TestResumeAutoBeginsARunThatHasNoCheckpoint(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-resume", "auto", "-out", out, "-steps", "2")
	for range 2 {
		if code, _, stderr := command(args...); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		if err := os.RemoveAll(filepath.Join(out, checkpointsDir)); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := command(args...); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if got := everything(t, out, 2); got != everything(t, trainTiny(t, "-steps", "2"), 2) {
		t.Error("the run that was begun three times is not what one gives that was begun once")
	}
}

func TestResumeFromAPathMakesARunOfItsOwn(t *testing.T) {
	first := trainTiny(t, "-steps", "3", "-set", "run.checkpoint_every=2")
	second := filepath.Join(t.TempDir(), "second")
	path := filepath.Join(first, checkpointsDir, checkpoint.StepTag(2))
	code, _, stderr := command("-resume", path, "-out", second, "-steps", "3", "-set", "optimizer.params.lr=0.5")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if !strings.Contains(stderr, "optimizer.params.lr was") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("want one warning, about the learning rate, got %q", stderr)
	}
	if rows := strings.Fields(read(t, filepath.Join(second, "csv", "job", "Train_Samples_train_loss.csv"))); len(rows) != 2 || !strings.HasPrefix(rows[1], "24,") {
		t.Errorf("curve of the second run: %q", rows)
	}
	if f, err := checkpoint.OpenVerified(filepath.Join(second, checkpointsDir, checkpoint.StepTag(3))); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}

func TestResumeRefusals(t *testing.T) {
	out := trainTiny(t, "-steps", "2")
	own := []string{"-config", filepath.Join(out, configFile), "-out", out, "-steps", "3"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{slices.Concat(own, []string{"-resume", "step-000009"}), []string{"step-000009", "step-000002"}},
		{slices.Concat(own, []string{"-resume", "../x"}), []string{"../x", "no such folder"}},
		{slices.Concat(own, []string{"-resume", "auto", "-set", "model.layers_per_block=1"}), []string{"another model", "is not in the model"}},
		{slices.Concat(own, []string{"-resume", "auto", "-set", "diffusion.ema_decay=0.5"}), []string{"exp_avg", "ema"}},
		{[]string{"-resume", "auto", "-out", out, "-world", "3"}, []string{"train_batch_size", "8", "3"}},
		{[]string{"-resume", "auto"}, []string{"-out", "-config"}},
		{[]string{"-resume", "auto", "-out", t.TempDir()}, []string{configFile}},
	} {
		code, _, stderr := command(c.args...)
		if code == 0 {
			t.Errorf("%q: accepted", c.args)
		}
		for _, w := range c.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%q: error lacks %q: %s", c.args, w, stderr)
			}
		}
	}
	if everything(t, out, 2) != everything(t, trainTiny(t, "-steps", "2"), 2) {
		t.Error("the run was changed")
	}
}

func TestARunHasOneProcess(t *testing.T) {
	out := trainTiny(t, "-steps", "1")
	other, err := lock(out)
	if err != nil || other == nil {
		t.Skipf("no locks here: %v", err)
	}
	code, _, stderr := command("-resume", "auto", "-out", out, "-steps", "2")
	if code != exitUsage || !strings.Contains(stderr, "another process is training there") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	goOn(t, out, "-steps", "2")
}

func TestCheckpointsThatAreKept(t *testing.T) {
	out := trainTiny(t, "-steps", "7", "-set", "run.checkpoint_every=2", "-set", "run.checkpoint_keep=3")
	all, err := checkpoint.List(filepath.Join(out, checkpointsDir))
	if err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, e := range all {
		tags = append(tags, e.Tag)
	}
	if want := []string{"step-000007", "step-000006", "step-000004"}; !slices.Equal(tags, want) {
		t.Errorf("checkpoints %v, want %v", tags, want)
	}
}
