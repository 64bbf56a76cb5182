package main

import (
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrorsSayHowToMendThem: every mistake a user can make is found before
// work starts, as lines that name the key or file, and leaves nothing behind.
func TestErrorsSayHowToMendThem(t *testing.T) {
	pictures := t.TempDir()
	for i := range 12 {
		writePNG(t, filepath.Join(pictures, string(rune('a'+i))+".png"))
	}
	broken := filepath.Join(pictures, "broken.png")
	if err := os.WriteFile(broken, []byte("\x89PNG\r\n\x1a\nnot really"), 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"no configuration", []string{}, 2, []string{"-config"}},
		{"unknown flag", []string{"-confg", "x"}, 2, []string{"-confg", "-help"}},
		{"stray argument", []string{"zero2.toml"}, 2, []string{`"zero2.toml"`, "-config"}},
		{"missing file", []string{"-config", "nowhere.toml"}, 2, []string{"nowhere.toml", "no such file"}},
		{"misspelt key", append(base(t), "-set", "zero_optimization.reduce_bucket_szie=7"), 2, []string{"zero_optimization.reduce_bucket_szie", "reduce_bucket_size"}},
		{"wrong stage", append(base(t), "-set", "zero_optimization.stage=3"), 2, []string{"zero_optimization.stage", "3", "not supported"}},
		{"impossible channels", append(base(t), "-set", "model.block_out_channels=[7,8]"), 2, []string{"model.block_out_channels", "7", "4"}},
		{"impossible head", append(base(t), "-set", "model.attention_head_dim=3"), 2, []string{"model.attention_head_dim", "3", "8"}},
		{"batch that does not divide", append(base(t), "-set", "train_batch_size=9"), 2, []string{"9", "2"}},
		{"more samples than pictures", append(base(t), "-set", "data.train_samples=4"), 2, []string{"train_batch_size = 8", "4"}},
		{"channels unlike the pictures", append(base(t), "-set", "model.in_channels=3", "-set", "model.out_channels=3", "-set", "data.channels=1"), 2, []string{"model.in_channels", "3", "1"}},
		{"sample steps", append(base(t), "-set", "diffusion.sample_steps=5000"), 2, []string{"diffusion.sample_steps", "5000", "1000"}},
		{"missing folder", append(base(t), "-set", "data.kind=folder", "-set", "data.path=/no/such/folder"), 2, []string{"data.path", "/no/such/folder"}},
		{"broken picture", append(base(t), "-set", "data.kind=folder", "-set", "data.path="+pictures, "-set", "data.train_samples=0"), 2, []string{broken}},
		{"output below a file", append(base(t), "-out", filepath.Join(file, "out")), 2, []string{filepath.Join(file, "out"), "-out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := command(c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("error %q does not contain %q", stderr, w)
				}
			}
			if n := strings.Count(strings.TrimSpace(stderr), "\n"); n > 0 {
				t.Errorf("error has %d lines, want one:\n%s", n+1, stderr)
			}
			if stdout != "" {
				t.Errorf("work had begun:\n%s", stdout)
			}
		})
	}
}

// base is a valid command line whose output folder must not be made.
func base(t *testing.T) []string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	t.Cleanup(func() {
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s was left behind by a run that never began", out)
		}
	})
	return append(append([]string{"-config", writeConfig(t, ""), "-steps", "1"}, tiny...), "-set", "run.out="+out)
}

func writePNG(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(f, image.NewGray(image.Rect(0, 0, 8, 8))); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
