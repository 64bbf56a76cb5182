package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// variantSets turns every variant of the network on.
var variantSets = []string{
	"-set", "model.num_classes=5", "-set", "model.label_dropout=0.5", "-set", "model.parallel_branches=1",
	"-set", "model.self_conditioning=true", "-set", "model.shared_middle=true", "-set", "model.checkpoint_conv_in=true",
}

// TestFaultsAreNamed: a training with faults says so in its header, its curves' folder
// and its configuration.
func TestFaultsAreNamed(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	all := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-out", out, "-steps", "2", "-world", "2",
		"-set", `lab.fault=["ring-order","norm-local"]`, "-set", "lab.seed=3")
	code, stdout, stderr := command(all...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "FAULTS") || !strings.Contains(stdout, "ring-order, norm-local, seed 3") {
		t.Errorf("the header does not name the faults: %s", stdout)
	}
	if _, err := os.Stat(filepath.Join(out, "csv", "job-fault-ring-order-norm-local", "Train_Samples_train_loss.csv")); err != nil {
		t.Error(err)
	}
	if config := read(t, filepath.Join(out, "config.toml")); !strings.Contains(config, `fault = ["ring-order", "norm-local"]`) {
		t.Errorf("the effective configuration lacks the faults: %s", config)
	}
}

// TestFaultsRefused: what cannot be chosen is refused before anything is made.
func TestFaultsRefused(t *testing.T) {
	for _, tc := range []struct {
		sets []string
		want string
	}{
		{[]string{"-set", `lab.fault=["ring"]`}, "hook-order-layout"},
		{[]string{"-set", `lab.fault=["no-skip","rank-local-skip"]`}, "same piece"},
		{[]string{"-set", `lab.fault=["ring-order"]`, "-set", "zero_optimization.reduction_order=local"}, "reduction_order = global"},
	} {
		code, _, stderr := command(append(append([]string{"-config", writeConfig(t, "")}, tiny...), tc.sets...)...)
		if code != 2 || !strings.Contains(stderr, "lab.fault") || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q, want 2 and %q", tc.sets, code, stderr, tc.want)
		}
	}
}

// TestVariantsKeepThePromise: with branches that ranks use differently, shared weights
// and two passes, world size, bucket size and checkpointing still change no bit.
func TestVariantsKeepThePromise(t *testing.T) {
	losses := func(args ...string) string {
		out := trainTiny(t, append(append(args, "-steps", "3"), variantSets...)...)
		if _, err := os.Stat(filepath.Join(out, "unet")); err == nil {
			t.Error("a network with variants was written as diffusers' files")
		}
		return read(t, filepath.Join(out, "csv", "job", "Train_Samples_train_loss.csv")) + read(t, filepath.Join(out, "csv", "job", "Train_Samples_grad_norm.csv"))
	}
	want := losses("-world", "1")
	for _, args := range [][]string{
		{"-world", "4", "-set", "zero_optimization.stage=2", "-set", "zero_optimization.reduce_bucket_size=1000", "-set", "zero_optimization.overlap_comm=true"},
		{"-world", "2", "-set", "zero_optimization.stage=1", "-set", "model.activation_checkpointing.mode=reentrant"},
		{"-world", "2", "-set", "model.activation_checkpointing.mode=non_reentrant", "-set", "model.activation_checkpointing.segments=2"},
	} {
		if got := losses(args...); got != want {
			t.Errorf("%v: other losses or norms:\n%s\nwant\n%s", args, got, want)
		}
	}
}
