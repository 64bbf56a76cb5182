package main

import (
	"encoding/json"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero/checkpoint"
)

// must runs a command that must succeed and returns what it printed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := command(args...)
	if code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

// TestSample: the pictures of a run's last checkpoint are those the run drew itself, at
// any world size, of its weights and of their moving average.
func TestSample(t *testing.T) {
	for _, extra := range [][]string{nil, average, {"-set", "bf16.enabled=true", "-set", "diffusion.ema_decay=0.9"}} {
		out := trainTiny(t, append(extra, "-steps", "3", "-world", "2")...)
		want := read(t, filepath.Join(out, samplesDir, "step-000003.png"))
		for _, world := range []string{"1", "3"} {
			grid, files := filepath.Join(t.TempDir(), "new", "grid.png"), t.TempDir()
			must(t, "sample", "-checkpoint", out, "-n", "5", "-world", world, "-out", grid, "-files", files)
			if read(t, grid) != want {
				t.Errorf("%q, world %s: not the pictures that the run drew", extra, world)
			}
			f, err := os.Open(filepath.Join(files, "00004.png"))
			if err != nil {
				t.Fatal(err)
			}
			if img, err := png.Decode(f); err != nil || img.Bounds().Dx() != 8 {
				t.Errorf("single picture: %v", err)
			}
			f.Close()
		}
		if len(extra) == 0 {
			continue
		}
		grid := filepath.Join(t.TempDir(), "grid.png")
		must(t, "sample", "-checkpoint", filepath.Join(out, checkpointsDir), "-n", "5", "-weights", "trained", "-out", grid)
		if read(t, grid) == want {
			t.Errorf("%q: the trained weights draw what their average draws", extra)
		}
	}
}

// TestExport: what is exported are the fp32 weights of the checkpoint by name, and a
// network that comes back draws the same pictures.
func TestExport(t *testing.T) {
	out := trainTiny(t, append(average, "-steps", "3", "-world", "4")...)
	f, err := checkpoint.OpenVerified(filepath.Join(out, checkpointsDir, checkpoint.StepTag(3)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, weights := range []string{"ema", "trained"} {
		flat, pipeline := filepath.Join(t.TempDir(), "flat"), filepath.Join(t.TempDir(), "pipeline")
		must(t, "export", "-checkpoint", out, "-weights", weights, "-format", "fp32", "-out", flat)
		must(t, "export", "-checkpoint", out, "-weights", weights, "-out", pipeline)
		for _, path := range []string{filepath.Join(flat, "model.safetensors"), filepath.Join(pipeline, "unet", "diffusion_pytorch_model.safetensors")} {
			file, err := safetensors.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range f.Manifest().Params {
				want, err := f.Master(p.Name)
				if weights == "ema" {
					want, err = f.State(p.Name, "ema")
				}
				if err != nil {
					t.Fatal(err)
				}
				if got, err := file.Float32(p.Name); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("%s of %s: %v", p.Name, path, err)
				}
			}
			file.Close()
		}
		// The tiny network computes in fp32, so nothing was lost.
		direct, back := filepath.Join(t.TempDir(), "a.png"), filepath.Join(t.TempDir(), "b.png")
		must(t, "sample", "-checkpoint", out, "-n", "3", "-weights", weights, "-out", direct)
		must(t, "sample", "-model", pipeline, "-n", "3", "-steps", "3", "-out", back)
		if read(t, direct) != read(t, back) {
			t.Errorf("%s weights: the exported pipeline draws other pictures", weights)
		}
	}
	code, _, stderr := command("export", "-checkpoint", out, "-out", out)
	if code != exitUsage || !strings.Contains(stderr, "not empty") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// TestFromPretrained: a training begins with the weights of a folder of diffusers.
func TestFromPretrained(t *testing.T) {
	first := trainTiny(t, "-steps", "2")
	second := trainTiny(t, "-steps", "1", "-set", "model.from_pretrained="+filepath.Join(first, networkDir), "-set", "optimizer.params.lr=0", "-set", "optimizer.params.weight_decay=0")
	name := filepath.Join(networkDir, "diffusion_pytorch_model.safetensors")
	if read(t, filepath.Join(first, name)) != read(t, filepath.Join(second, name)) {
		t.Error("a step with learning rate 0 has left other weights than those the training began with")
	}
	args := append([]string{"-config", writeConfig(t, ""), "-out", filepath.Join(t.TempDir(), "x")}, tiny...)
	for set, want := range map[string]string{
		"model.from_pretrained=" + t.TempDir():                                                           "config.json",
		"model.from_pretrained=" + first + " model.layers_per_block=1":                                   "not the one configured",
		"model.from_pretrained=" + filepath.Join(first, networkDir) + " model.norm_eps=0.125":            "another config.json",
		"model.from_pretrained=" + filepath.Join(first, networkDir) + " model.block_out_channels=[8,16]": "not the one configured",
	} {
		all := args
		for _, s := range strings.Fields(set) {
			all = append(all[:len(all):len(all)], "-set", s)
		}
		if code, _, stderr := command(all...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q", set, code, stderr)
		}
	}
}

func TestEval(t *testing.T) {
	out := trainTiny(t, append(average, "-steps", "4", "-world", "2")...)
	results := filepath.Join(t.TempDir(), "eval")
	stdout := must(t, "eval", "-checkpoint", out, "-n", "6", "-out", results)
	var e evaluation
	if err := json.Unmarshal([]byte(read(t, filepath.Join(results, "eval.json"))), &e); err != nil {
		t.Fatal(err)
	}
	// The held-out loss is the one that the run recorded.
	rows := strings.Fields(read(t, filepath.Join(out, "csv", "job", "Eval_Samples_held_out_loss.csv")))
	if want := fmt.Sprintf("32,%v", e.Loss); rows[len(rows)-1] != want {
		t.Errorf("held-out loss %s, the run has recorded %s", want, rows[len(rows)-1])
	}
	var sum float64
	for _, b := range e.Bins {
		sum += b.Loss * float64(b.Samples)
	}
	if math.Abs(sum/float64(e.Samples)-e.Loss) > 1e-9 || len(e.Bins) != 10 {
		t.Errorf("bins %+v do not add up to %v", e.Bins, e.Loss)
	}
	if !(e.Wasserstein > e.WassersteinTraining) || len(e.Nearest) != 6 || !(e.NearestMedian > 0) || e.Nearest[0].Index < 0 {
		t.Errorf("a network of four steps: %+v", e)
	}
	if !strings.Contains(stdout, "sliced Wasserstein") {
		t.Errorf("output %q", stdout)
	}
	for _, name := range []string{"samples.png", "nearest.png", "csv/Eval_Samples_sliced_wasserstein.csv"} {
		if read(t, filepath.Join(results, name)) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	// Twice is once: the row is replaced, and another world gives the same.
	before := read(t, filepath.Join(results, "eval.json"))
	must(t, "eval", "-checkpoint", out, "-n", "6", "-out", results, "-world", "3")
	if read(t, filepath.Join(results, "eval.json")) != before {
		t.Error("another world size gives other results")
	}
	if n := strings.Count(read(t, filepath.Join(results, "csv", "Eval_Samples_held_out_loss.csv")), "\n"); n != 2 {
		t.Errorf("%d lines in the series, want a header and a row", n)
	}
}

func TestInspect(t *testing.T) {
	out := trainTiny(t, append(average, "-steps", "4", "-world", "2", "-set", "run.checkpoint_every=2", "-set", "fp16.enabled=true")...)
	path := filepath.Join(out, checkpointsDir, checkpoint.StepTag(4))
	stdout := must(t, "inspect", "-tensors", path)
	for _, want := range []string{"4 tried", "loss scale", "2 ranks", "EMA(decay=0.9", "32 samples seen", "exp_avg_sq, ema", "conv_in.weight", "checksums    all good", "config.toml"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("inspect lacks %q:\n%s", want, stdout)
		}
	}
	if stdout := must(t, "inspect", out); strings.Count(stdout, "good:") != 2 {
		t.Errorf("a run's checkpoints:\n%s", stdout)
	}
	file := filepath.Join(path, "optimizer-00001-of-00002.safetensors")
	raw := []byte(read(t, file))
	raw[len(raw)-1] ^= 1
	if err := os.WriteFile(file, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{path, out} {
		code, stdout, stderr := command("inspect", what)
		if code != exitFailed || !strings.Contains(stdout+stderr, file) {
			t.Errorf("inspect %s of damaged files: exit code %d, %s%s", what, code, stdout, stderr)
		}
	}
}

func TestNetworkMistakes(t *testing.T) {
	out := trainTiny(t, "-steps", "1")
	empty := t.TempDir()
	for _, c := range []struct{ args, want string }{
		{"sample", "-checkpoint"},
		{"sample -checkpoint " + out + " -model x", "-model"},
		{"sample -checkpoint " + out + " -n 0", "-n 0"},
		{"sample -checkpoint " + out + " -weights ema", "ema_decay"},
		{"sample -checkpoint " + out + " -weights best", "allowed are ema and trained"},
		{"sample -checkpoint " + out + " -sampler euler", "ddpm, ddim"},
		{"sample -checkpoint " + out + " -steps 5000", "1000"},
		{"sample -checkpoint " + out + " -sampler ddim -eta 3", "from 0 to 1"},
		{"sample -checkpoint " + out + " -world 0", "-world 0"},
		{"sample -checkpoint " + out + " -set model.layers_per_block=1", "parameters"},
		{"sample -checkpoint " + empty, "no checkpoints"},
		{"sample -checkpoint " + empty + "/none", "no such folder"},
		{"sample -model " + empty, "save_pretrained"},
		{"export -checkpoint " + out, "-out"},
		{"export -checkpoint " + out + " -out " + empty + " -format onnx", "diffusers and fp32"},
		{"inspect", "one folder"},
		{"inspect " + empty, "no checkpoints"},
		{"eval -checkpoint " + out + " -set data.path=/none -set data.kind=folder", "/none"},
	} {
		code, _, stderr := command(strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("train %s: exit code %d, want a usage error with %q, got %s", c.args, code, c.want, stderr)
		}
	}
}
