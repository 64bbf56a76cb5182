package main

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// tiny is a training that takes a moment: a small network on drawn shapes.
var tiny = []string{
	"-set", "data.kind=procedural", "-set", "data.train_samples=64", "-set", "data.image_size=8", "-set", "model.sample_size=8",
	"-set", "model.block_out_channels=[8,8]", "-set", `model.down_block_types=["DownBlock2D","AttnDownBlock2D"]`,
	"-set", `model.up_block_types=["AttnUpBlock2D","UpBlock2D"]`, "-set", "model.norm_num_groups=4",
	"-set", "run.eval_samples=40", "-set", "run.sample_count=5", "-set", "diffusion.sample_steps=3",
	"-set", "train_batch_size=8", "-set", "train_micro_batch_size_per_gpu=2", "-set", "csv_monitor.enabled=true",
	"-set", "csv_monitor.job_name=job",
}

// command runs the program in this process.
func command(args ...string) (code int, stdout, stderr string) {
	var out, errs lockedBuffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// writeConfig writes a configuration that the settings of tiny complete.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// trainTiny runs the tiny training and returns its output folder.
func trainTiny(t *testing.T, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	all := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-out", out)
	code, _, stderr := command(append(all, args...)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestTrainingLeavesWhatItPromises(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := trainTiny(t, "-steps", "3", "-world", "2", "-set", "run.sample_every=2")
	for _, name := range []string{"samples/step-000002.png", "samples/step-000003.png", "loss.png"} {
		f, err := os.Open(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
	loss := strings.Fields(read(t, filepath.Join(out, "csv", "job", "Train_Samples_train_loss.csv")))
	if len(loss) != 4 || loss[0] != "step,train_loss" || !strings.HasPrefix(loss[1], "8,") || !strings.HasPrefix(loss[3], "24,") {
		t.Errorf("train_loss.csv is %q, want a header and rows at 8, 16, 24 samples", loss)
	}
	// The effective configuration repeats the run bit for bit.
	again := filepath.Join(t.TempDir(), "again")
	if code, _, stderr := command("-config", filepath.Join(out, "config.toml"), "-out", again); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if a, b := curve(t, out), curve(t, again); a != b {
		t.Errorf("losses of the repeated run\n%s\nwant\n%s", b, a)
	}
}

// curve is the text of the CSV files that must not depend on the world size.
func curve(t *testing.T, out string) string {
	t.Helper()
	var all string
	for _, name := range []string{"Train_Samples_train_loss", "Train_Samples_grad_norm", "Train_Samples_lr", "Eval_Samples_held_out_loss"} {
		all += read(t, filepath.Join(out, "csv", "job", name+".csv"))
	}
	return all
}

func TestWorldSizeChangesNothing(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16", ""} {
		args := []string{"-steps", "3"}
		if dtype != "" {
			args = append(args, "-set", dtype+".enabled=true")
		}
		want := trainTiny(t, append(args, "-world", "1")...)
		for _, world := range []string{"2", "4"} {
			got := trainTiny(t, append(args, "-world", world, "-set", "zero_optimization.stage=2", "-set", "zero_optimization.reduce_bucket_size=500", "-set", "zero_optimization.overlap_comm=true")...)
			if a, b := curve(t, want), curve(t, got); a != b {
				t.Errorf("%s world %s: curves\n%s\nworld 1:\n%s", dtype, world, b, a)
			}
			grid := filepath.Join("samples", "step-000003.png")
			if read(t, filepath.Join(want, grid)) != read(t, filepath.Join(got, grid)) {
				t.Errorf("%s world %s: other pictures than world 1", dtype, world)
			}
		}
	}
}

func TestEveryConfigurationRuns(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.*") // cluster/ has none
	if err != nil || len(files) < 4 {
		t.Fatalf("configurations: %v, %v", files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := []string{"-config", f, "-steps", "1", "-out", out, "-quiet",
				"-set", "run.sample_count=2", "-set", "diffusion.sample_steps=1", "-set", "run.eval_samples=4"}
			if filepath.Base(f) == "emoji.toml" { // its pictures do not come with the module
				args = append(args, "-set", "data.kind=procedural")
			}
			code, _, stderr := command(args...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			if _, err := os.Stat(filepath.Join(out, "samples", "step-000001.png")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInterruptStopsAtAStepBorder(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := filepath.Join(t.TempDir(), "out")
	args := append(append([]string{"-config", writeConfig(t, ""), "-out", out, "-world", "2", "-steps", "100000"}, tiny...), "-set", "steps_per_print=1")
	var stdout, stderr lockedBuffer
	done := make(chan int)
	go func() { done <- run(args, &stdout, &stderr) }()
	for !strings.Contains(stdout.String(), "step      2/100000") {
		select {
		case code := <-done:
			t.Fatalf("ended with code %d: %s", code, stderr.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("still running 30 s after the interrupt")
	}
	if !strings.Contains(stdout.String(), "as asked") {
		t.Errorf("the summary does not say that the run was stopped:\n%s", stdout.String())
	}
	if grids, _ := filepath.Glob(filepath.Join(out, "samples", "*.png")); len(grids) != 1 {
		t.Errorf("pictures %v, want the final grid", grids)
	}
}

func TestAnEarlierRunIsNeverOverwritten(t *testing.T) {
	out := trainTiny(t, "-steps", "1")
	before := read(t, filepath.Join(out, "config.toml"))
	args := append([]string{"-config", writeConfig(t, ""), "-steps", "1"}, tiny...)
	code, _, stderr := command(append(args, "-out", out)...)
	if code != exitUsage || !strings.Contains(stderr, "not empty") || !strings.Contains(stderr, "-out") {
		t.Errorf("exit code %d, %q; want a refusal that names -out", code, stderr)
	}
	code, stdout, stderr := command(append(args, "-set", "run.out="+out)...)
	if code != 0 || !strings.Contains(stdout, out+"-2") {
		t.Errorf("exit code %d, %q: want the run in %s-2", code, stderr, out)
	}
	if read(t, filepath.Join(out, "config.toml")) != before {
		t.Error("the earlier run's configuration has changed")
	}
}
