package unet

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// testdata holds values that PyTorch and diffusers computed.
const testdata = "../testdata/unet/"

// levels sets the channels and the levels that have attention.
func levels(c Config, channels []int, attention ...int) Config {
	n := len(channels)
	c.BlockOutChannels, c.DownBlockTypes, c.UpBlockTypes = channels, nil, nil
	for i := range n {
		down, up := DownBlock2D, UpBlock2D
		if slices.Contains(attention, i) {
			down = AttnDownBlock2D
		}
		if slices.Contains(attention, n-1-i) {
			up = AttnUpBlock2D
		}
		c.DownBlockTypes = append(c.DownBlockTypes, down)
		c.UpBlockTypes = append(c.UpBlockTypes, up)
	}
	return c
}

func TestCountParams(t *testing.T) {
	def := DefaultConfig()
	grey := def
	grey.InChannels, grey.OutChannels, grey.NormNumGroups = 1, 1, 8
	with := func(c Config, layers int) Config { c.LayersPerBlock = layers; return c }
	for _, c := range []struct {
		cfg               Config
		elements, tensors int
	}{
		{levels(grey, []int{16, 32, 32}, 2), 408_641, 268},
		{levels(def, []int{32, 64, 64}), 1_540_483, 218},
		{levels(def, []int{32, 64, 64}, 2), 1_624_323, 268},
		{levels(def, []int{32, 64, 64}, 1, 2), 1_708_163, 318},
		{with(levels(def, []int{32, 64, 64}, 2), 1), 1_113_955, 182},
		{levels(def, []int{64, 128, 128}, 2), 6_472_195, 268},
		{levels(def, []int{128, 256, 256, 256}, 1), 35_746_307, 328},
		{with(levels(def, []int{256, 256, 512, 512, 1024, 1024}, 4), 3), 599_631_363, 602},
		{levels(def, []int{448, 448, 896, 896, 896, 896}, 4), 590_950_531, 448},
		{levels(def, []int{512, 512, 1024, 1024, 1024, 1024}, 4), 771_808_259, 448},
		{def, 274_056_163, 432},
	} {
		elements, tensors, err := CountParams(c.cfg)
		if err != nil || elements != c.elements || tensors != c.tensors {
			t.Errorf("%v with %d layers: %d elements in %d tensors (%v), want %d in %d", c.cfg.BlockOutChannels,
				c.cfg.LayersPerBlock, elements, tensors, err, c.elements, c.tensors)
		}
	}
}

// countFormula counts elements with sums over block types and no names.
func countFormula(c Config) int {
	time, layers := 4*c.BlockOutChannels[0], c.LayersPerBlock
	resnet := func(in, out int) int {
		proj := out
		if c.ResnetTimeScaleShift == timeScaleShift {
			proj = 2 * out
		}
		n := 2*in + 9*in*out + out + time*proj + proj + 2*out + 9*out*out + out
		if in != out {
			n += in*out + out
		}
		return n
	}
	projections := func(ch int) int { return 4 * (ch*ch + ch) }
	conv := func(in, out int) int { return 9*in*out + out }

	ch := c.BlockOutChannels
	last := len(ch) - 1
	total := conv(c.InChannels, ch[0]) + ch[0]*time + time + time*time + time + 2*ch[0] + conv(ch[0], c.OutChannels)
	total += 2 * resnet(ch[last], ch[last])
	if c.AddAttention {
		total += projections(ch[last])
		if c.ResnetTimeScaleShift == timeAdd {
			total += 2 * ch[last]
		}
	}
	for i, out := range ch {
		before, above := ch[max(i-1, 0)], ch[min(i+1, last)]
		total += resnet(before, out) + (layers-1)*resnet(out, out)
		total += resnet(above+out, out) + (layers-1)*resnet(2*out, out) + resnet(out+before, out)
		if i < last {
			total += conv(out, out)
		}
		if i > 0 {
			total += conv(out, out)
		}
		if c.DownBlockTypes[i] == AttnDownBlock2D {
			total += layers * (projections(out) + 2*out)
		}
		if c.UpBlockTypes[last-i] == AttnUpBlock2D {
			total += (layers + 1) * (projections(out) + 2*out)
		}
	}
	return total
}

func TestCountParamsAgainstFormula(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := DefaultConfig()
		c.NormNumGroups = rapid.IntRange(1, 4).Draw(r, "groups")
		c.AttentionHeadDim = IntOrNull(rapid.SampledFrom([]int{0, 1}).Draw(r, "head dim"))
		c.LayersPerBlock = rapid.IntRange(1, 4).Draw(r, "layers")
		c.InChannels = rapid.IntRange(1, 5).Draw(r, "in")
		c.OutChannels = rapid.IntRange(1, 5).Draw(r, "out")
		c.AddAttention = rapid.Bool().Draw(r, "mid attention")
		c.ResnetTimeScaleShift = rapid.SampledFrom([]string{timeAdd, timeScaleShift}).Draw(r, "time")
		var channels, attention []int
		for i := range rapid.IntRange(1, 6).Draw(r, "levels") {
			channels = append(channels, c.NormNumGroups*rapid.IntRange(1, 9).Draw(r, "multiple"))
			if rapid.Bool().Draw(r, "attention") {
				attention = append(attention, i)
			}
		}
		c = levels(c, channels, attention...)
		elements, _, err := CountParams(c)
		if err != nil {
			r.Fatal(err)
		}
		if want := countFormula(c); elements != want {
			r.Fatalf("%d elements, want %d", elements, want)
		}
	})
}

// Names, shapes and their order are those of model.named_parameters() in diffusers.
func TestNamesAgainstDiffusers(t *testing.T) {
	text, err := os.ReadFile(testdata + "names.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct {
		Name                string
		Config              json.RawMessage
		Parameters, Tensors int
		Names               []string
	}
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, e := range entries {
		t.Run(e.Name, func(t *testing.T) {
			cfg, err := ParseConfig(strings.NewReader(string(e.Config)))
			if err != nil {
				t.Fatal(err)
			}
			elements, tensors, err := CountParams(cfg)
			if err != nil || elements != e.Parameters || tensors != e.Tensors {
				t.Errorf("%d elements in %d tensors (%v), want %d in %d", elements, tensors, err, e.Parameters, e.Tensors)
			}
			if e.Names == nil {
				return
			}
			listed++
			shapes, err := ParamShapes(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range shapes {
				names = append(names, p.Name+" "+strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Shape), "[]"), " ", "x"))
			}
			if diff := cmp.Diff(e.Names, names); diff != "" {
				t.Error(diff)
			}
		})
	}
	if listed == 0 {
		t.Error("no entry lists names")
	}
}

func TestParamsAreWhatParamShapesSays(t *testing.T) {
	c := small()
	shapes, err := ParamShapes(c)
	if err != nil {
		t.Fatal(err)
	}
	params := mustNew(t, c, 1).Params()
	if len(params) != len(shapes) {
		t.Fatalf("%d parameters, %d shapes", len(params), len(shapes))
	}
	for i, p := range params {
		if p.Name != shapes[i].Name || !slices.Equal(p.Shape(), shapes[i].Shape) {
			t.Errorf("parameter %d is %s %v, shape is %v", i, p.Name, p.Shape(), shapes[i])
		}
	}
}

// Options that add, drop or widen tensors.
func TestOptionsChangeShapes(t *testing.T) {
	for _, c := range []struct {
		change func(c *Config)
		name   string
		shape  []int // nil: no such parameter
	}{
		{func(*Config) {}, "time_embedding.linear_2.weight", []int{16, 16}},
		{func(c *Config) { c.TimeEmbeddingDim = 24 }, "time_embedding.linear_2.weight", []int{24, 24}},
		{func(c *Config) { c.TimeEmbeddingDim = 24 }, "mid_block.resnets.0.time_emb_proj.weight", []int{8, 24}},
		{func(*Config) {}, "mid_block.attentions.0.group_norm.weight", []int{8}},
		{func(c *Config) { c.ResnetTimeScaleShift = timeScaleShift }, "mid_block.attentions.0.group_norm.weight", nil},
		{func(c *Config) { c.ResnetTimeScaleShift = timeScaleShift }, "mid_block.attentions.0.to_q.weight", []int{8, 8}},
		{func(c *Config) { c.ResnetTimeScaleShift = timeScaleShift }, "down_blocks.1.attentions.0.group_norm.weight", []int{4}},
		{func(c *Config) { c.ResnetTimeScaleShift, c.AttnNormNumGroups = timeScaleShift, 4 }, "mid_block.attentions.0.group_norm.weight", []int{8}},
		{func(c *Config) { c.ResnetTimeScaleShift = timeScaleShift }, "mid_block.resnets.0.time_emb_proj.weight", []int{16, 16}},
		{func(c *Config) { c.AddAttention = false }, "mid_block.attentions.0.to_q.weight", nil},
		{func(c *Config) { c.MidBlockType = "" }, "mid_block.resnets.0.conv1.weight", nil},
	} {
		cfg := small()
		c.change(&cfg)
		shapes, err := ParamShapes(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, p := range shapes {
			if p.Name == c.name {
				got = p.Shape
			}
		}
		if !slices.Equal(got, c.shape) {
			t.Errorf("%s is %v, want %v", c.name, got, c.shape)
		}
	}
}
