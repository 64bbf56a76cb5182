package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigListsKeys(t *testing.T) {
	code, all, _ := command("config", "-list")
	for _, want := range []string{"[zero_optimization]", "  reduce_bucket_size  (", "default 500000000; honoured", "[model.activation_checkpointing]", "refused"} {
		if code != 0 || !strings.Contains(all, want) {
			t.Errorf("exit code %d, the list lacks %q", code, want)
		}
	}
	if strings.Contains(all, "`") {
		t.Error("the list holds backquotes, which are for Markdown")
	}
	_, some, _ := command("config", "-list", "BUCKET")
	if !strings.Contains(some, "allgather_bucket_size") || strings.Contains(some, "gradient_clipping") {
		t.Errorf("keys with BUCKET:\n%s", some)
	}
}

func TestConfigShowsWhatRuns(t *testing.T) {
	code, shown, stderr := command("config", "-show", "-config", "../../configs/zero2.toml", "-set", "optimizer.params.lr=0.5")
	if code != 0 || !strings.Contains(shown, "lr = 0.5") || !strings.Contains(shown, "beta_end = 0.02") {
		t.Fatalf("exit code %d, %s\n%s", code, stderr, shown)
	}
	// What is shown is a configuration that comes to the same.
	path := filepath.Join(t.TempDir(), "shown.toml")
	if err := os.WriteFile(path, []byte(shown), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, again, stderr := command("config", "-show", "-config", path); again != shown {
		t.Errorf("shown again it differs: %s\n%s", stderr, again)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "-list or -show"},
		{[]string{"-list", "-show"}, "-list or -show"},
		{[]string{"-list", "nosuchkey"}, `"nosuchkey"`},
		{[]string{"-list", "a", "b"}, "one word"},
		{[]string{"-list", "-config", "x.toml"}, "-show"},
		{[]string{"-show"}, "-config"},
		{[]string{"-show", "zero2.toml"}, "zero2.toml"},
		{[]string{"-show", "-config", "../../configs/zero2.toml", "-set", "zero_optimization.stage=3"}, "zero_optimization.stage"},
	} {
		if code, _, stderr := command(append([]string{"config"}, c.args...)...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, %q does not contain %q", c.args, code, stderr, c.want)
		}
	}
}
