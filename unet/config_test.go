package unet

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestValidateNamesKeyValueAndWhatIsAllowed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *Config)
		want   []string // all in one problem
	}{
		{"channels 31 in 32 groups", func(c *Config) {
			c.BlockOutChannels, c.NormNumGroups = []int{31, 64, 64}, 32
		}, []string{"block_out_channels[0]", "31", "norm_num_groups = 32"}},
		{"channels 48 in 32 groups", func(c *Config) {
			c.BlockOutChannels, c.NormNumGroups = []int{32, 48, 64}, 32
		}, []string{"block_out_channels[1]", "48", "norm_num_groups = 32"}},
		{"no levels", func(c *Config) { c.BlockOutChannels, c.DownBlockTypes, c.UpBlockTypes = nil, nil, nil }, []string{"block_out_channels", "at least one"}},
		{"negative channels", func(c *Config) { c.BlockOutChannels = []int{-4, 4, 8} }, []string{"block_out_channels[0] = -4", "at least 1"}},
		{"too few down blocks", func(c *Config) { c.DownBlockTypes = c.DownBlockTypes[:2] }, []string{"down_block_types has 2", "block_out_channels has 3"}},
		{"too few up blocks", func(c *Config) { c.UpBlockTypes = c.UpBlockTypes[:1] }, []string{"up_block_types has 1", "block_out_channels has 3"}},
		{"up block in the down path", func(c *Config) { c.DownBlockTypes[1] = UpBlock2D }, []string{"down_block_types[1]", "UpBlock2D", "DownBlock2D, AttnDownBlock2D"}},
		{"unknown up block", func(c *Config) { c.UpBlockTypes[2] = "CrossAttnUpBlock2D" }, []string{"up_block_types[2]", "CrossAttnUpBlock2D", "UpBlock2D, AttnUpBlock2D"}},
		{"unknown mid block", func(c *Config) { c.MidBlockType = "X" }, []string{"mid_block_type", `"X"`, "UNetMidBlock2D"}},
		{"head dim", func(c *Config) { c.AttentionHeadDim = 3 }, []string{"attention_head_dim = 3", "block_out_channels[1] = 4"}},
		{"head dim above channels", func(c *Config) { c.AttentionHeadDim = 8 }, []string{"attention_head_dim = 8", "block_out_channels[1] = 4"}},
		{"negative head dim", func(c *Config) { c.AttentionHeadDim = -1 }, []string{"attention_head_dim = -1"}},
		{"groups of the middle attention", func(c *Config) { c.AttnNormNumGroups = 3 }, []string{"attn_norm_num_groups = 3", "8"}},
		{"no groups", func(c *Config) { c.NormNumGroups = 0 }, []string{"norm_num_groups = 0", "at least 1"}},
		{"no layers", func(c *Config) { c.LayersPerBlock = 0 }, []string{"layers_per_block = 0"}},
		{"no input", func(c *Config) { c.InChannels = 0 }, []string{"in_channels = 0"}},
		{"no output", func(c *Config) { c.OutChannels = 0 }, []string{"out_channels = 0"}},
		{"dropout", func(c *Config) { c.Dropout = 1 }, []string{"dropout = 1", "below 1"}},
		{"eps", func(c *Config) { c.NormEps = 0 }, []string{"norm_eps = 0", "above 0"}},
		{"padding", func(c *Config) { c.DownsamplePadding = 2 }, []string{"downsample_padding = 2", "0, 1"}},
		{"frequency shift", func(c *Config) { c.FreqShift = 2 }, []string{"freq_shift = 2", "below half"}},
		{"scale shift", func(c *Config) { c.ResnetTimeScaleShift = "spatial" }, []string{"resnet_time_scale_shift", "spatial", "scale_shift"}},
		{"half a sample size", func(c *Config) { c.SampleSize.Width = 4 }, []string{"sample_size = [0, 4]"}},
		{"fourier", func(c *Config) { c.TimeEmbeddingType = "fourier" }, []string{"time_embedding_type", "fourier", "positional"}},
		{"resnet downsampler", func(c *Config) { c.DownsampleType = "resnet" }, []string{"downsample_type", "resnet", "conv"}},
		{"resnet upsampler", func(c *Config) { c.UpsampleType = "resnet" }, []string{"upsample_type", "resnet", "conv"}},
		{"activation", func(c *Config) { c.ActFn = "gelu" }, []string{"act_fn", "gelu", "silu"}},
		{"centred input", func(c *Config) { c.CenterInputSample = true }, []string{"center_input_sample = true", "false"}},
		{"scale factor", func(c *Config) { c.MidBlockScaleFactor = 2 }, []string{"mid_block_scale_factor = 2", "1"}},
		{"classes", func(c *Config) { c.NumClassEmbeds = 10 }, []string{"num_class_embeds = 10", "null"}},
		{"class type", func(c *Config) { c.ClassEmbedType = "timestep" }, []string{"class_embed_type", "timestep", "null"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := small()
			c.change(&cfg)
			_, err := New(cfg, 1)
			var ce *ConfigError
			if !errors.As(err, &ce) {
				t.Fatalf("error %v", err)
			}
			for _, p := range ce.Problems {
				all := true
				for _, w := range c.want {
					all = all && strings.Contains(p, w)
				}
				if all {
					return
				}
			}
			t.Errorf("no problem has %q: %q", c.want, ce.Problems)
		})
	}
}

func TestValidateListsAllProblemsOnOneLine(t *testing.T) {
	c := small()
	c.InChannels, c.Dropout, c.BlockOutChannels = 0, -1, []int{4, 5, 8}
	err := c.Validate()
	for _, w := range []string{"in_channels = 0", "dropout = -1", "block_out_channels[1] = 5"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"small":           func(*Config) {},
		"defaults":        func(c *Config) { *c = DefaultConfig() },
		"48, 96 in 16":    func(c *Config) { c.BlockOutChannels, c.NormNumGroups = []int{48, 96, 96}, 16 },
		"swish":           func(c *Config) { c.ActFn = "swish" },
		"no middle block": func(c *Config) { c.MidBlockType = "" },
		"heads fit only where attention is": func(c *Config) {
			c.BlockOutChannels, c.AttentionHeadDim = []int{2, 8, 8}, 8
		},
	} {
		c := small()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigRoundTrip(t *testing.T) {
	odd := small()
	odd.SampleSize = Size{13, 9}
	odd.AttentionHeadDim, odd.MidBlockType = 0, ""
	odd.AttnNormNumGroups, odd.TimeEmbeddingDim, odd.NumTrainTimesteps = 4, 24, 1000
	odd.FlipSinToCos, odd.FreqShift, odd.DownsamplePadding, odd.NormEps = false, 1, 0, 1e-6
	odd.ResnetTimeScaleShift, odd.AddAttention, odd.Dropout = "scale_shift", false, 0.1
	square := DefaultConfig()
	square.SampleSize = Size{32, 32}
	for _, c := range []Config{odd, square, DefaultConfig()} {
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Error(diff)
		}
		if !strings.HasPrefix(string(text), `{"_class_name":"UNet2DModel","sample_size":`) {
			t.Errorf("%s", text)
		}
	}
}

func TestParseConfig(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"absent keys keep the defaults", `{}`, ""},
		{"bookkeeping of other tools", `{"_diffusers_version": "0.35.1", "_name_or_path": "x", "decay": 0.9999, "power": 0.75}`, ""},
		{"unknown key", `{"norm_groups": 8}`, `unknown field "norm_groups"`},
		{"other class", `{"_class_name": "UNet2DConditionModel"}`, "UNet2DConditionModel"},
		{"null where a number belongs", `{"norm_num_groups": null}`, "norm_num_groups = null"},
		{"0 heads", `{"attention_head_dim": 0}`, "null is allowed"},
		{"empty middle block", `{"mid_block_type": ""}`, "null is allowed"},
		{"three sizes", `{"sample_size": [1, 2, 3]}`, "sample_size = [1,2,3]"},
		{"string for a number", `{"in_channels": "3"}`, "in_channels"},
		{"not an object", `[1]`, "config.json"},
		{"cut off", `{"in_channels": 3`, "unexpected EOF"},
		{"invalid", `{"in_channels": 0}`, "in_channels = 0"},
	} {
		_, err := ParseConfig(strings.NewReader(c.text))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
