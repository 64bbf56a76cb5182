package unet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/safetensors"
)

func TestSaveAndLoadKeepEveryBit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "model")
	c := small()
	c.AttentionHeadDim, c.SampleSize = 0, Size{13, 9}
	m := mustNew(t, c, 4)
	for range 2 { // the second time over the first
		if err := m.SaveDiffusers(dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LoadDiffusers(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Config(), got.Config()); diff != "" {
		t.Error(diff)
	}
	for i, p := range got.Params() {
		if w := m.params[i]; p.Name != w.Name || !slices.Equal(p.Value.Float32s(), w.Value.Float32s()) {
			t.Errorf("%s came back different", w.Name)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("folder holds %v (%v)", files, err)
	}
}

func TestSaveTakesOtherValues(t *testing.T) {
	dir := t.TempDir()
	m := mustNew(t, small(), 4)
	err := m.SaveDiffusers(dir, func(p *framework.Param) []float32 {
		v := p.Value.Float32s()
		for i := range v {
			v[i] *= 2
		}
		return v
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := LoadDiffusers(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got.Params() {
		for j, v := range p.Value.Float32s() {
			if v != 2*m.params[i].Value.Float32s()[j] {
				t.Fatalf("%s[%d] = %v", p.Name, j, v)
			}
		}
	}
	err = m.SaveDiffusers(dir, func(*framework.Param) []float32 { return nil })
	if err == nil || !strings.Contains(err.Error(), "0 values for parameter conv_in.weight") {
		t.Errorf("error %v", err)
	}
}

// rewrite stores the weights of a folder again, each under the name that
// rename returns ("" drops it), and then extra.
func rewrite(t *testing.T, dir string, rename func(string) string, extra ...safetensors.Tensor) {
	t.Helper()
	path := filepath.Join(dir, weightsFile)
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var tensors []safetensors.Tensor
	for _, n := range f.Names() {
		v, err := f.Float32(n)
		if err != nil {
			t.Fatal(err)
		}
		if to := rename(n); to != "" {
			tensors = append(tensors, safetensors.Tensor{Name: to, Shape: f.Shape(n), Data: v})
		}
	}
	if err := safetensors.Write(path, append(tensors, extra...), nil); err != nil {
		t.Fatal(err)
	}
}

func saved(t *testing.T) (string, *UNet2DModel) {
	t.Helper()
	dir, m := t.TempDir(), mustNew(t, small(), 4)
	if err := m.SaveDiffusers(dir, nil); err != nil {
		t.Fatal(err)
	}
	return dir, m
}

func TestLoadKnowsOldAttentionNames(t *testing.T) {
	dir, m := saved(t)
	old := strings.NewReplacer("to_q", "query", "to_k", "key", "to_v", "value", "to_out.0", "proj_attn")
	changed := 0
	rewrite(t, dir, func(n string) string {
		if old.Replace(n) != n {
			changed++
		}
		return old.Replace(n)
	})
	if changed == 0 {
		t.Fatal("no attention in the model")
	}
	got, err := LoadDiffusers(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got.Params() {
		if !slices.Equal(p.Value.Float32s(), m.params[i].Value.Float32s()) {
			t.Errorf("%s came back different", p.Name)
		}
	}
}

func TestLoadNamesAllThatDoesNotFit(t *testing.T) {
	dir, _ := saved(t)
	drop := map[string]bool{"conv_in.bias": true, "mid_block.resnets.1.conv2.weight": true, "conv_out.bias": true}
	rewrite(t, dir, func(n string) string {
		if drop[n] {
			return ""
		}
		return n
	},
		safetensors.Tensor{Name: "conv_out.bias", Shape: []int{3}, Data: make([]float32, 3)},
		safetensors.Tensor{Name: "extra.a", Shape: []int{1}, Data: make([]float32, 1)},
		safetensors.Tensor{Name: "mid_block.attentions.0.query.bias", Shape: []int{8}, Data: make([]float32, 8)},
	)
	_, err := LoadDiffusers(dir)
	var we *WeightsError
	if !errors.As(err, &we) {
		t.Fatalf("error %v", err)
	}
	slices.Sort(we.Unexpected)
	want := &WeightsError{
		Path:       filepath.Join(dir, weightsFile),
		Missing:    []string{"conv_in.bias", "mid_block.resnets.1.conv2.weight"},
		Mismatched: []string{"conv_out.bias is [3] and must be [2]"},
	}
	if got := we.Unexpected; len(got) != 2 || got[0] != "extra.a" || !strings.HasPrefix(got[1], "mid_block.attentions.0.") {
		t.Errorf("unexpected: %q", got)
	}
	we.Unexpected = nil
	if diff := cmp.Diff(want, we); diff != "" {
		t.Error(diff)
	}
	for _, w := range []string{"2 missing: conv_in.bias, mid_block", "1 of another shape: conv_out.bias"} {
		if !strings.Contains(we.Error(), w) || strings.Contains(we.Error(), "\n") {
			t.Errorf("%q is not in %q", w, we)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		want  string
	}{
		{"no config", func(d string) error { return os.Remove(filepath.Join(d, configFile)) }, "config.json"},
		{"no weights", func(d string) error { return os.Remove(filepath.Join(d, weightsFile)) }, weightsFile},
		{"pickle only", func(d string) error {
			return os.Rename(filepath.Join(d, weightsFile), filepath.Join(d, "diffusion_pytorch_model.bin"))
		}, "safe_serialization=True"},
		{"invalid config", func(d string) error {
			return os.WriteFile(filepath.Join(d, configFile), []byte(`{"dropout": 3}`), 0o644)
		}, "dropout = 3"},
		{"torn weights", func(d string) error { return os.Truncate(filepath.Join(d, weightsFile), 5000) }, weightsFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, _ := saved(t)
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadDiffusers(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestSaveIntoAFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := mustNew(t, small(), 1).SaveDiffusers(path, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}
