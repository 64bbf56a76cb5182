package unet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Config describes a UNet2DModel. Fields and JSON keys are those of diffusers'
// config.json, defaults those of its constructor (DefaultConfig). Keys whose
// other values are not implemented are kept, so that a file that asks for one
// is refused by Validate and never read as something else.
type Config struct {
	// SampleSize is the image size the model was made for. It is information
	// for samplers: the network takes every size.
	SampleSize Size `json:"sample_size"`

	InChannels  int `json:"in_channels"`
	OutChannels int `json:"out_channels"`

	CenterInputSample bool `json:"center_input_sample"` // false

	TimeEmbeddingType string `json:"time_embedding_type"` // "positional"
	// TimeEmbeddingDim is the width of the time embedding MLP; null means
	// 4·BlockOutChannels[0].
	TimeEmbeddingDim IntOrNull `json:"time_embedding_dim"`
	FreqShift        int       `json:"freq_shift"`
	FlipSinToCos     bool      `json:"flip_sin_to_cos"` // cosines first

	DownBlockTypes   []string     `json:"down_block_types"`
	MidBlockType     StringOrNull `json:"mid_block_type"` // null: no middle block
	UpBlockTypes     []string     `json:"up_block_types"`
	BlockOutChannels []int        `json:"block_out_channels"`
	LayersPerBlock   int          `json:"layers_per_block"`

	MidBlockScaleFactor float64 `json:"mid_block_scale_factor"` // 1
	// DownsamplePadding is 1, or 0 to pad by one row and column at the bottom
	// and the right instead of all around.
	DownsamplePadding int    `json:"downsample_padding"`
	DownsampleType    string `json:"downsample_type"` // "conv"
	UpsampleType      string `json:"upsample_type"`   // "conv"

	Dropout float64 `json:"dropout"`
	ActFn   string  `json:"act_fn"` // "silu"; "swish" is the same function

	// AttentionHeadDim is the number of channels of one head; null means one
	// head over all channels.
	AttentionHeadDim IntOrNull `json:"attention_head_dim"`
	NormNumGroups    int       `json:"norm_num_groups"`
	// AttnNormNumGroups is the group count of the middle block's attention.
	// null means NormNumGroups, and no normalisation there when
	// ResnetTimeScaleShift is "scale_shift".
	AttnNormNumGroups IntOrNull `json:"attn_norm_num_groups"`
	NormEps           float64   `json:"norm_eps"`

	// ResnetTimeScaleShift is "default" (the time embedding is added) or
	// "scale_shift" (it scales and shifts after the second norm).
	ResnetTimeScaleShift string `json:"resnet_time_scale_shift"`
	AddAttention         bool   `json:"add_attention"` // attention in the middle block

	ClassEmbedType    StringOrNull `json:"class_embed_type"`    // null
	NumClassEmbeds    IntOrNull    `json:"num_class_embeds"`    // null
	NumTrainTimesteps IntOrNull    `json:"num_train_timesteps"` // unused by positional embeddings

	Variants Variants `json:"-"` // none in diffusers' network
}

// DefaultConfig returns the defaults of diffusers' UNet2DModel, a network of
// 274 million parameters.
func DefaultConfig() Config {
	return Config{
		InChannels:           3,
		OutChannels:          3,
		TimeEmbeddingType:    "positional",
		FlipSinToCos:         true,
		DownBlockTypes:       []string{DownBlock2D, AttnDownBlock2D, AttnDownBlock2D, AttnDownBlock2D},
		MidBlockType:         UNetMidBlock2D,
		UpBlockTypes:         []string{AttnUpBlock2D, AttnUpBlock2D, AttnUpBlock2D, UpBlock2D},
		BlockOutChannels:     []int{224, 448, 672, 896},
		LayersPerBlock:       2,
		MidBlockScaleFactor:  1,
		DownsamplePadding:    1,
		DownsampleType:       "conv",
		UpsampleType:         "conv",
		ActFn:                "silu",
		AttentionHeadDim:     8,
		NormNumGroups:        32,
		NormEps:              1e-5,
		ResnetTimeScaleShift: "default",
		AddAttention:         true,
	}
}

// Block types.
const (
	DownBlock2D     = "DownBlock2D"     // resnets
	AttnDownBlock2D = "AttnDownBlock2D" // resnets, each followed by attention
	UpBlock2D       = "UpBlock2D"
	AttnUpBlock2D   = "AttnUpBlock2D"
	UNetMidBlock2D  = "UNetMidBlock2D"
)

// timeDim returns the width of the time embedding.
func (c *Config) timeDim() int {
	if c.TimeEmbeddingDim != 0 {
		return int(c.TimeEmbeddingDim)
	}
	return 4 * c.BlockOutChannels[0]
}

// clone returns a copy that shares no memory with c.
func (c *Config) clone() Config {
	d := *c
	d.DownBlockTypes = slices.Clone(c.DownBlockTypes)
	d.UpBlockTypes = slices.Clone(c.UpBlockTypes)
	d.BlockOutChannels = slices.Clone(c.BlockOutChannels)
	return d
}

// ignoredKeys are keys of config.json that describe something other than the
// network: diffusers' bookkeeping begins with "_", and a model saved from an
// exponential moving average carries the average's settings.
var ignoredKeys = map[string]bool{
	"decay": true, "min_decay": true, "optimization_step": true, "update_after_step": true,
	"use_ema_warmup": true, "inv_gamma": true, "power": true,
}

// nullableKeys are the keys whose fields know a null; for all others
// encoding/json would read null as "keep the default".
var nullableKeys = map[string]bool{
	"sample_size": true, "time_embedding_dim": true, "mid_block_type": true, "attention_head_dim": true,
	"attn_norm_num_groups": true, "class_embed_type": true, "num_class_embeds": true, "num_train_timesteps": true,
}

// ParseConfig reads diffusers' config.json. Keys that are absent keep their
// default; an unknown key is an error, as is a configuration that Validate
// refuses.
func ParseConfig(r io.Reader) (Config, error) {
	var raw map[string]json.RawMessage
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	var class string
	if v, ok := raw["_class_name"]; ok {
		if err := json.Unmarshal(v, &class); err != nil || class != "UNet2DModel" {
			return Config{}, fmt.Errorf("config.json: _class_name = %s: only \"UNet2DModel\" can be read", v)
		}
	}
	for k, v := range raw {
		switch {
		case strings.HasPrefix(k, "_") || ignoredKeys[k]:
			delete(raw, k)
		case string(v) == "null" && !nullableKeys[k]:
			return Config{}, fmt.Errorf("config.json: %s = null: a value is needed", k)
		}
	}
	known, err := json.Marshal(raw)
	if err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	c := DefaultConfig()
	dec := json.NewDecoder(bytes.NewReader(known))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("config.json: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return c, c.Validate()
}

// MarshalJSON writes diffusers' config.json, with the class name that its
// loader looks for.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config // without this method
	return json.Marshal(struct {
		Class string `json:"_class_name"`
		plain
	}{"UNet2DModel", plain(c)})
}

// IntOrNull is a positive number, or null in JSON when it is 0.
type IntOrNull int

// MarshalJSON writes 0 as null.
func (n IntOrNull) MarshalJSON() ([]byte, error) {
	if n == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int(n))
}

// UnmarshalJSON reads null as 0 and refuses a written 0, which means something
// else elsewhere.
func (n *IntOrNull) UnmarshalJSON(b []byte) error {
	var v *int
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*n = 0
	if v != nil {
		if *v == 0 {
			return errors.New("0 where a positive number or null is allowed")
		}
		*n = IntOrNull(*v)
	}
	return nil
}

// StringOrNull is a string, or null in JSON when it is empty.
type StringOrNull string

// MarshalJSON writes "" as null.
func (s StringOrNull) MarshalJSON() ([]byte, error) {
	if s == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(s))
}

// UnmarshalJSON reads null as "" and refuses a written "".
func (s *StringOrNull) UnmarshalJSON(b []byte) error {
	var v *string
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*s = ""
	if v != nil {
		if *v == "" {
			return errors.New(`"" where a name or null is allowed`)
		}
		*s = StringOrNull(*v)
	}
	return nil
}

// Size is the height and width of an image, a number (square), a pair or null
// (0, 0) in JSON.
type Size struct{ Height, Width int }

// MarshalJSON writes a square as one number.
func (s Size) MarshalJSON() ([]byte, error) {
	switch {
	case s == Size{}:
		return []byte("null"), nil
	case s.Height == s.Width:
		return json.Marshal(s.Height)
	}
	return json.Marshal([2]int{s.Height, s.Width})
}

// UnmarshalJSON reads a number, a pair [height, width] or null.
func (s *Size) UnmarshalJSON(b []byte) error {
	var n *int
	if json.Unmarshal(b, &n) == nil {
		*s = Size{}
		if n != nil {
			*s = Size{*n, *n}
		}
		return nil
	}
	var pair []int
	if err := json.Unmarshal(b, &pair); err != nil || len(pair) != 2 {
		return fmt.Errorf("sample_size = %s: allowed are a number, [height, width] and null", b)
	}
	*s = Size{pair[0], pair[1]}
	return nil
}
