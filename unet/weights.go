package unet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/nn"
)

// Files of a diffusers model folder.
const (
	configFile  = "config.json"
	weightsFile = "diffusion_pytorch_model.safetensors"
)

// WeightsError says how a file of weights differs from what a configuration needs.
type WeightsError struct {
	Path       string
	Missing    []string // names of parameters that the file lacks
	Unexpected []string // names in the file that no parameter has
	Mismatched []string // name, shape in the file and shape needed
}

func (e *WeightsError) Error() string {
	var parts []string
	for _, l := range []struct {
		title string
		names []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"of another shape", e.Mismatched}} {
		if len(l.names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s: %s", len(l.names), l.title, strings.Join(l.names, ", ")))
		}
	}
	return fmt.Sprintf("%s does not fit the %s beside it: %s", e.Path, configFile, strings.Join(parts, "; "))
}

// LoadDiffusers reads a model that diffusers' UNet2DModel.save_pretrained (or
// SaveDiffusers) wrote: dir holds config.json and
// diffusion_pytorch_model.safetensors. Weights are matched by name, including
// the names that attention layers had in old releases, and widened to fp32. If
// names or shapes do not fit, the error is a *WeightsError with all of them.
func LoadDiffusers(dir string) (*UNet2DModel, error) {
	cfg, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	weights, err := readWeights(dir, cfg)
	if err != nil {
		return nil, err
	}
	s := nn.NewScopeFill(func(name string, _ nn.Init, _ []int) []float32 { return weights[name] })
	return build(cfg, s), nil
}

// ReadConfig reads the config.json of a folder that diffusers' save_pretrained (or
// SaveDiffusers) wrote.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, configFile)
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("model folder: %w", err)
	}
	defer f.Close()
	cfg, err := ParseConfig(f)
	if err != nil {
		return Config{}, fmt.Errorf("read %s: %w", path, err)
	}
	return cfg, nil
}

// readWeights returns the values of every parameter of cfg, by its name.
func readWeights(dir string, cfg Config) (map[string][]float32, error) {
	path := filepath.Join(dir, weightsFile)
	file, err := safetensors.Open(path)
	if err != nil {
		if pickles, _ := filepath.Glob(filepath.Join(dir, "*.bin")); errors.Is(err, fs.ErrNotExist) && len(pickles) > 0 {
			return nil, fmt.Errorf("%w; %s is a Python pickle: save the model with safe_serialization=True", err, pickles[0])
		}
		return nil, err
	}
	defer file.Close()
	stored, err := match(file, path, cfg)
	if err != nil {
		return nil, err
	}
	weights := make(map[string][]float32, len(stored))
	for name, key := range stored {
		if weights[name], err = file.Float32(key); err != nil {
			return nil, err
		}
	}
	return weights, nil
}

// match maps the name of every parameter to the name under which the file has it.
func match(file *safetensors.File, path string, cfg Config) (map[string]string, error) {
	needed, err := ParamShapes(cfg)
	if err != nil {
		return nil, err
	}
	shapes := make(map[string][]int, len(needed))
	for _, p := range needed {
		shapes[p.Name] = p.Shape
	}
	e := &WeightsError{Path: path}
	stored := make(map[string]string, len(needed))
	for _, key := range file.Names() {
		name := currentName(key)
		want, known := shapes[name]
		_, twice := stored[name]
		switch have := file.Shape(key); {
		case !known || twice:
			e.Unexpected = append(e.Unexpected, key)
		case !slices.Equal(have, want):
			e.Mismatched = append(e.Mismatched, fmt.Sprintf("%s is %v and must be %v", key, have, want))
			fallthrough
		default:
			stored[name] = key
		}
	}
	for _, p := range needed {
		if _, ok := stored[p.Name]; !ok {
			e.Missing = append(e.Missing, p.Name)
		}
	}
	if len(e.Missing)+len(e.Unexpected)+len(e.Mismatched) > 0 {
		return nil, e
	}
	return stored, nil
}

// oldNames are the projections of attention layers as they were called before
// diffusers 0.17, in files that are still in use.
var oldNames = strings.NewReplacer(".query.", ".to_q.", ".key.", ".to_k.", ".value.", ".to_v.", ".proj_attn.", ".to_out.0.")

func currentName(key string) string {
	if strings.Contains(key, ".attentions.") {
		return oldNames.Replace(key)
	}
	return key
}

// SaveDiffusers writes config.json and diffusion_pytorch_model.safetensors into
// dir, which is made if it does not exist, as fp32; diffusers loads the folder
// with UNet2DModel.from_pretrained. values returns what to store for a
// parameter, row-major: master weights or a moving average, for example; nil
// stores the parameters' own values. Each file appears whole or not at all.
func (m *UNet2DModel) SaveDiffusers(dir string, values func(p *framework.Param) []float32) error {
	if m.cfg.Variants != (Variants{}) {
		return fmt.Errorf("save %s: a network with variants has no form in diffusers' files", dir)
	}
	if values == nil {
		values = func(p *framework.Param) []float32 { return p.Value.Float32s() }
	}
	tensors := make([]safetensors.Tensor, len(m.params))
	for i, p := range m.params {
		v := values(p)
		if len(v) != p.Len() {
			return fmt.Errorf("save %s: %d values for parameter %s of shape %v", dir, len(v), p.Name, p.Shape())
		}
		tensors[i] = safetensors.Tensor{Name: p.Name, Shape: p.Shape(), Data: v}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	// The metadata tells diffusers that names and layouts are PyTorch's.
	if err := safetensors.Write(filepath.Join(dir, weightsFile), tensors, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return writeConfig(filepath.Join(dir, configFile), m.cfg)
}

func writeConfig(path string, cfg Config) (err error) {
	text, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
