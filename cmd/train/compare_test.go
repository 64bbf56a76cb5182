package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompare: two runs of this program and one of DeepSpeed's layout on one page.
func TestCompare(t *testing.T) {
	a := trainTiny(t, "-steps", "3")
	b := trainTiny(t, "-steps", "3", "-world", "2", "-set", "zero_optimization.stage=2")
	other := filepath.Join(t.TempDir(), "deepspeed", "job")
	if err := os.MkdirAll(other, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "Train_Samples_train_loss.csv"), []byte("step,train_loss\r\n8,1.5\r\n16,nan\r\nstep,train_loss\r\n24,1.25\r\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "compare")
	code, stdout, stderr := command("compare", "-out", out, filepath.Join(a, "csv"), filepath.Join(b, "csv"), filepath.Dir(other))
	if code != 0 || !strings.Contains(stdout, "of 3 runs") {
		t.Fatalf("exit code %d, %q, %s", code, stdout, stderr)
	}
	page := read(t, filepath.Join(out, "compare.html"))
	for _, part := range []string{"in none of 3", "from 8 on", "NaN at 16", "1.25", `src="data:image/png;base64,`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	if i, j := strings.Index(page, "train_loss"), strings.Index(page, "grad_norm"); i < 0 || j < i {
		t.Errorf("losses are at %d and norms at %d: want losses first", i, j)
	}
	if _, err := os.Stat(filepath.Join(out, "Train_Samples_train_loss.png")); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"compare"}, "wants the folders"},
		{[]string{"compare", t.TempDir()}, "CSV monitor"},
		{[]string{"compare", filepath.Join(out, "none")}, "none"},
	} {
		if code, _, stderr := command(tc.args...); code != 2 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q, want 2 and %q", tc.args, code, stderr, tc.want)
		}
	}
}
