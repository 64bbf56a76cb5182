//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/internal/launch"
)

// envRank makes the test binary the program: it runs itself under the launchers.
const envRank = "ZEROGAP_TEST_TRAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envRank) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// mpirun runs train on ranks of l.
func mpirun(t *testing.T, l launch.Launcher, ranks int, args ...string) launch.Result {
	t.Helper()
	return l.Run(t, launch.Command{
		Ranks: ranks, Timeout: 2 * time.Minute, Args: append([]string{os.Args[0]}, args...), Env: []string{envRank + "=1"},
	})
}

// files returns what a run leaves that does not name the engine or the folder.
func files(t *testing.T, out string) string {
	t.Helper()
	text := ""
	for _, name := range []string{"csv/job/Train_Samples_train_loss.csv", "csv/job/Train_Samples_grad_norm.csv", "csv/job/Eval_Samples_held_out_loss.csv", "unet/diffusion_pytorch_model.safetensors"} {
		text += fmt.Sprintf("%s: %s\n", name, hash([]byte(read(t, filepath.Join(out, name)))))
	}
	return text
}

// TestMPITrainsTheSameBits: losses, norms, pictures and weights of a training are
// those of goroutines in one process, under every launcher, at every world size and
// whatever the knobs say.
func TestMPITrainsTheSameBits(t *testing.T) {
	launchers := launch.Find(t)
	common := append([]string{"-config", writeConfig(t, "")}, tiny...)
	common = append(common, "-steps", "3", "-set", "csv_monitor.enabled=true")
	want := map[string]string{} // by formats: all else changes nothing
	for _, k := range []struct {
		formats string
		ranks   int
		knobs   []string
	}{
		{"fp32", 1, nil},
		{"fp32", 2, []string{"zero_optimization.stage=2", "zero_optimization.overlap_comm=true", "zero_optimization.reduce_bucket_size=777"}},
		{"fp32", 4, []string{"zero_optimization.stage=1", "zero_optimization.reduce_bucket_size=5000", "zero_optimization.allgather_bucket_size=900"}},
		{"bf16", 1, []string{"zero_optimization.stage=2"}},
		{"bf16", 2, []string{"zero_optimization.stage=0", "zero_optimization.reduce_bucket_size=100"}},
		{"bf16", 2, []string{"zero_optimization.stage=2", "zero_optimization.reduce_scatter=false", "zero_optimization.overlap_comm=true"}},
		{"bf16", 2, []string{"zero_optimization.stage=2", "zero_optimization.contiguous_gradients=false", "zero_optimization.round_robin_gradients=true"}},
		{"bf16", 4, []string{"zero_optimization.stage=2", "zero_optimization.use_multi_rank_bucket_allreduce=false", "zero_optimization.reduce_bucket_size=3000"}},
		{"bf16", 4, []string{"zero_optimization.stage=1", "model.activation_checkpointing.mode=reentrant", "zero_optimization.overlap_comm=true"}},
		{"fp16", 2, []string{"zero_optimization.stage=2", "zero_optimization.reduce_bucket_size=1e9"}},
		{"fp16", 4, []string{"zero_optimization.stage=2", "zero_optimization.overlap_comm=true"}},
	} {
		args := append([]string{}, common...)
		if k.formats != "fp32" {
			args = append(args, "-set", k.formats+".enabled=true")
		}
		for _, knob := range k.knobs {
			args = append(args, "-set", knob)
		}
		if want[k.formats] == "" {
			out := filepath.Join(t.TempDir(), "local")
			if code, _, stderr := command(append(args, "-out", out, "-world", "2")...); code != 0 {
				t.Fatal(stderr)
			}
			want[k.formats] = files(t, out)
		}
		for _, l := range launchers {
			name := fmt.Sprintf("%s/%s/ranks=%d/%s", l.Family, k.formats, k.ranks, strings.Join(k.knobs, ","))
			t.Run(strings.ReplaceAll(name, "zero_optimization.", ""), func(t *testing.T) {
				if testing.Short() && k.ranks != 2 {
					t.Skip("short")
				}
				out := filepath.Join(t.TempDir(), "out")
				r := mpirun(t, l, k.ranks, append(args, "-out", out)...)
				if r.Code != 0 {
					t.Fatal(r)
				}
				if got := files(t, out); got != want[k.formats] {
					t.Errorf("through MPI\n%swant\n%s", got, want[k.formats])
				}
				oneSpeaker(t, r, out, k.ranks)
			})
		}
	}
}

// oneSpeaker checks that rank 0 prints and the others write to files.
func oneSpeaker(t *testing.T, r launch.Result, out string, ranks int) {
	t.Helper()
	if n := strings.Count(r.Stdout, "trained "); n != 1 {
		t.Errorf("%d ranks print their end:\n%s", n, r.Stdout)
	}
	for rank := 1; rank < ranks; rank++ {
		if log := read(t, filepath.Join(out, "logs", fmt.Sprintf("rank-%d.log", rank))); !strings.Contains(log, fmt.Sprintf("rank %d of %d", rank, ranks)) {
			t.Errorf("log of rank %d:\n%s", rank, log)
		}
	}
}

// TestMPIRefusesToBegin: what is wrong before the first step is said once, with the
// ranks that it is about, and leaves nothing behind.
func TestMPIRefusesToBegin(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, append(program, 0), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, l := range launch.Find(t) {
		for _, c := range []struct {
			name   string
			first  []string // more settings of rank 0
			second []string // of rank 1
			binary string   // of rank 1
			want   []string
		}{
			{"configuration of one", nil, []string{"-set", "zero_optimization.reduce_bucket_size=77"}, "", []string{"rank 0 has", "rank 1 has", "reduce_bucket_size = 77"}},
			{"mistake of one", nil, []string{"-set", "zero_optimization.stage=7"}, "", []string{"rank 1", "zero_optimization.stage"}},
			{"mistake of all", []string{"-set", "zero_optimization.stage=7"}, []string{"-set", "zero_optimization.stage=7"}, "", []string{"zero_optimization.stage", "7"}},
			{"data of one", nil, []string{"-set", "run.seed=0", "-set", "data.train_samples=63"}, "", []string{"rank 1 has", "train_samples"}},
			{"program of one", nil, nil, other, []string{"rank 1", "different builds"}},
			{"local engine", []string{"-set", "comm.engine=local"}, []string{"-set", "comm.engine=local"}, "", []string{"comm.engine", "2 processes"}},
			{"another world", []string{"-world", "3"}, []string{"-world", "3"}, "", []string{"comm.world = 3", "has started 2"}},
			{"a batch that does not divide", []string{"-set", "train_batch_size=9"}, []string{"-set", "train_batch_size=9"}, "", []string{"train_batch_size = 9", "world comes from mpi"}},
		} {
			t.Run(l.Family+"/"+c.name, func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				args := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-steps", "2", "-set", "run.out="+out)
				program := os.Args[0]
				if c.binary != "" {
					program = c.binary
				}
				all := append(append([]string{}, args...), c.first...)
				all = append(all, ":", "-np", "1", program)
				all = append(append(all, args...), c.second...)
				r := mpirun(t, l, 1, all...)
				if r.Code != exitUsage || r.TimedOut {
					t.Errorf("want exit code %d: %v", exitUsage, r)
				}
				for _, want := range c.want {
					if !strings.Contains(r.Stderr, want) {
						t.Errorf("the error does not contain %q: %v", want, r)
					}
				}
				if n := strings.Count(r.Stderr, "train: "); n != 1 {
					t.Errorf("%d lines of errors, want 1: %v", n, r)
				}
				if _, err := os.Stat(out); err == nil {
					t.Errorf("%s was left behind", out)
				}
			})
		}
	}
}

// TestMPIRefusesOtherData: the same configuration, with other files on one machine.
func TestMPIRefusesOtherData(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for r, dir := range dirs {
		pictures := filepath.Join(dir, "pictures")
		if err := os.Mkdir(pictures, 0o777); err != nil {
			t.Fatal(err)
		}
		for i := range 32 {
			picture := image.NewGray(image.Rect(0, 0, 8, 8))
			picture.Pix[0] = byte(i)
			if i == 7 {
				picture.Pix[5] = byte(r)
			}
			var b bytes.Buffer
			if err := errors.Join(png.Encode(&b, picture), os.WriteFile(filepath.Join(pictures, fmt.Sprintf("%02d.png", i)), b.Bytes(), 0o666)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, l := range launch.Find(t) {
		args := append([]string{os.Args[0], "-config", writeConfig(t, "")}, tiny...)
		args = append(args, "-steps", "1", "-set", "data.kind=folder", "-set", "data.path=pictures", "-set", "data.train_samples=0", "-set", "run.out="+filepath.Join(t.TempDir(), "out"))
		all := append(append([]string{"-wdir", dirs[0]}, args...), ":", "-np", "1", "-wdir", dirs[1])
		r := l.Run(t, launch.Command{Ranks: 1, Timeout: time.Minute, Args: append(all, args...), Env: []string{envRank + "=1"}})
		if r.Code != exitUsage || !strings.Contains(r.Stderr, "rank 0") || !strings.Contains(r.Stderr, "rank 1") || !strings.Contains(r.Stderr, "different data") {
			t.Errorf("%s: %v", l.Family, r)
		}
	}
}

// TestTorchrunIsRefused: its environment cannot start MPI.
func TestTorchrunIsRefused(t *testing.T) {
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"} {
		t.Setenv(name, value)
	}
	code, _, stderr := command(base(t)...)
	if code != exitUsage || !strings.Contains(stderr, "mpirun -np 2") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	code, _, stderr = command(append(base(t), "-set", "comm.library=/no/libmpi.so", "-set", "comm.engine=mpi")...)
	if code != exitUsage || !strings.Contains(stderr, "mpirun -np 2") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAMissingMPIIsNamed: engine mpi without a library says what to install.
func TestAMissingMPIIsNamed(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-steps", "1", "-out", out, "-set", "comm.engine=mpi", "-set", "comm.library=/no/libmpi.so")
	code, _, stderr := command(args...)
	if code != exitUsage || !strings.Contains(stderr, "/no/libmpi.so") || !strings.Contains(stderr, "apt-get install") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Errorf("%s was left behind", out)
	}
}
