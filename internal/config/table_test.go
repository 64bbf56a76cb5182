package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// samples returns values that key k takes and that are not its default, as
// they are written in TOML.
func samples(k *Key) []string {
	var all []string
	switch k.Kind {
	case Bool:
		all = []string{"true", "false"}
	case Int:
		all = []string{"0", "1", "2", "3", "16", "1e3", "5_000_000"}
	case Float:
		all = []string{"0", "0.5", "1.0", "1e-9", "0.1", "1e30"}
	case String:
		all = []string{`"x"`, `"quote \" back \\ tab \t null \u0000 é 日"`}
	case Enum, Enums:
		for _, a := range k.Allowed {
			all = append(all, fmt.Sprintf("%q", a))
		}
		if k.Kind == Enums {
			all = []string{"[" + strings.Join(all, ",") + "]"}
		}
	case DType:
		all = []string{`"fp32"`, `"bf16"`, `"fp16"`}
	case Ints:
		all = []string{"[8]", "[8, 16]"}
	case FloatPair:
		all = []string{"[0.25, 0.1]", "[0, 1e-300]"}
	case List:
		all = []string{`["a", 1]`}
	case Object:
		all = []string{"{enabled = true}", "{device = \"cpu\"}"}
	}
	return slices.DeleteFunc(all, func(text string) bool {
		raw, err := settingValue(text)
		if err != nil {
			return true
		}
		v, err := k.convert(raw)
		return err != nil || k.harmless(v)
	})
}

// trial is a legal configuration and values that may be put over it for one key.
type trial struct{ base, values []string }

// trials has the keys whose values must agree with those of others.
func trials() map[string]trial {
	cosine := []string{"train_batch_size=96", "scheduler.type=WarmupCosineLR", "scheduler.params.warmup_num_steps=2", "scheduler.params.total_num_steps=99"}
	decay := []string{"train_batch_size=96", "scheduler.type=WarmupDecayLR", "scheduler.params.total_num_steps=5_000_001", "scheduler.params.warmup_max_lr=2.0"}
	sgd := []string{"train_batch_size=96", "optimizer.type=SGD", "optimizer.params.momentum=0.9"}
	rgb := []string{"train_batch_size=96", "model.in_channels=3", "model.out_channels=3", "data.channels=3"}
	t := map[string]trial{
		keyBatch:                                      {nil, []string{"2", "1e3"}},
		keyMicro:                                      {nil, []string{"2", "1e3"}},
		keyAccum:                                      {[]string{"train_batch_size=96"}, []string{"2", "96"}},
		keyWorld:                                      {[]string{"train_batch_size=96"}, []string{"2", "3"}},
		"communication_data_type":                     {[]string{"train_batch_size=96"}, []string{`"fp16"`, `"bf16"`}},
		"optimizer.params.torch_adam":                 {[]string{"train_batch_size=96", "optimizer.params.weight_decay=0"}, []string{"true"}},
		"optimizer.params.adam_w_mode":                {[]string{"train_batch_size=96", "optimizer.type=Adam"}, []string{"false"}},
		"optimizer.params.momentum":                   {sgd, []string{"0.5", "0"}},
		"optimizer.params.dampening":                  {sgd, []string{"0.5", "-1"}},
		"optimizer.params.nesterov":                   {sgd, []string{"true"}},
		"scheduler.type":                              {[]string{"train_batch_size=96"}, []string{"WarmupLR"}},
		"scheduler.params.total_num_steps":            {cosine, []string{"100", "1e6"}},
		"scheduler.params.cos_min_ratio":              {cosine, []string{"0", "0.5", "1.0"}},
		"scheduler.params.warmup_min_ratio":           {cosine, []string{"0.5", "1.0"}},
		"scheduler.params.warmup_max_lr":              {decay, []string{"0.5", "1e30"}},
		"scheduler.params.warmup_min_lr":              {decay, []string{"0.5", "1e-9"}},
		"scheduler.params.warmup_num_steps":           {decay, []string{"0", "3", "5_000_000"}},
		"scheduler.params.warmup_type":                {decay, []string{"linear"}},
		"model.out_channels":                          {rgb, nil},
		"model.in_channels":                           {[]string{"train_batch_size=96"}, []string{"3"}},
		"data.channels":                               {rgb, nil},
		"data.image_size":                             {[]string{"train_batch_size=96", "model.sample_size=16", "data.image_size=16"}, nil},
		"model.sample_size":                           {[]string{"train_batch_size=96"}, []string{"28"}},
		"data.kind":                                   {[]string{"train_batch_size=96", "data.path=/tmp"}, []string{"emoji", "folder", "procedural"}},
		"diffusion.num_train_timesteps":               {[]string{"train_batch_size=96", "diffusion.sample_steps=1"}, []string{"1", "1e6"}},
		"diffusion.sample_steps":                      {[]string{"train_batch_size=96"}, []string{"1", "1e3"}},
		"diffusion.beta_start":                        {[]string{"train_batch_size=96"}, []string{"0", "0.02"}},
		"diffusion.beta_end":                          {[]string{"train_batch_size=96"}, []string{"0.5"}},
		"diffusion.eta":                               {[]string{"train_batch_size=96", "diffusion.sampler=ddim"}, []string{"0.5", "1.0"}},
		"fp16.initial_scale_power":                    {[]string{"train_batch_size=96"}, []string{"0", "32"}},
		"fp16.min_loss_scale":                         {[]string{"train_batch_size=96"}, []string{"0.5", "65536"}},
		"data_types.param_dtype":                      {[]string{"train_batch_size=96"}, []string{`"fp32"`}},
		"torch_autocast.dtype":                        {}, // a section that cannot be switched on
		"torch_autocast.lower_precision_safe_modules": {},
	}
	return t
}

// trialOf returns what to try for a key: its own entry, or sample values over
// the smallest configuration.
func trialOf(k *Key) trial {
	if t, special := trials()[k.Path]; special {
		return t
	}
	return trial{[]string{"train_batch_size=96"}, samples(k)}
}

// Every key does what its status says: an honoured one changes the effective
// configuration and survives the way through TOML, one without effect warns,
// a refused one fails.
func TestEveryKey(t *testing.T) {
	fields, byPath := fieldsOf(new(Config)), map[string]Key{}
	for _, k := range Keys() {
		byPath[k.Path] = k
	}
	for _, k := range Keys() {
		try := trialOf(&k)
		if len(try.values) == 0 && len(k.Allowed) != 1 && trials()[k.Path].base == nil && !strings.HasPrefix(k.Path, "torch_autocast.") {
			t.Errorf("%s: no value to try", k.Path)
		}
		if on, has := byPath[sectionOf(k.Path)+".enabled"]; has && on.Status != Refused && on.Path != k.Path {
			try.base = append(try.base, on.Path+"=true")
		}
		for _, v := range try.values {
			sets := append(slices.Clone(try.base), k.Path+"="+v)
			c, err := Load("", sets)
			if k.Status == Refused {
				wantError(t, err, k.Path+" = ", "refused")
				continue
			}
			if err != nil {
				t.Errorf("%q: %v", sets, err)
				continue
			}
			if n := len(c.Warnings); k.Status == NoEffect && n != 1 || k.Status == Honoured && n != 0 {
				t.Errorf("%q: warnings %q", sets, c.Warnings)
			}
			if _, bound := fields[k.Path]; !bound {
				continue
			}
			roundTrip(t, c)
			plain, err := Load("", try.base)
			adam := k.Path == "optimizer.type" && v == `"Adam"` // is AdamW by either name
			if err == nil && cmp.Equal(plain, c, effective) && !adam {
				t.Errorf("%q changes nothing", sets)
			}
		}
	}
}

func roundTrip(t *testing.T, c *Config) {
	t.Helper()
	back, err := Load(file(t, "effective.toml", string(c.TOML())), nil)
	if err != nil {
		t.Errorf("%v\n%s", err, c.TOML())
		return
	}
	if d := cmp.Diff(c, back, effective); d != "" {
		t.Error(d)
	}
}

// A wrong type is refused by every key of every kind, with path and value.
func TestEveryKeyIsStrict(t *testing.T) {
	wrong := map[Kind][]string{
		Bool: {`"true"`, "1", "0.0"}, Int: {"true", `"1"`, "1.5", "nan"}, Float: {"false", `"1.0"`, "inf", "nan"}, String: {"1", "true", "[]"},
		Enum: {"1", `"no such value"`, "true"}, DType: {"16", `"fp8"`}, Ints: {"1", "[1.5]", `["1"]`, "[]"}, Enums: {`"DownBlock2D"`, "[1]", `["x"]`},
		FloatPair: {"0.5", "[0.5]", "[0.5, 0.5, 0.5]", `["0.5", 0.5]`}, List: {"1"}, Object: {"1", `"x"`, "[]"},
	}
	for _, k := range Keys() {
		for _, v := range wrong[k.Kind] {
			_, err := Load("", append(slices.Clone(trialOf(&k).base), k.Path+"="+v))
			if err == nil || !strings.Contains(err.Error(), "-set: "+k.Path+" = "+v) {
				t.Errorf("%s = %s: %v", k.Path, v, err)
			}
		}
	}
}

// Warnings say what was asked for in vain, and nothing else.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string // beginnings
	}{
		{"allgather_partitions: true, contiguous_gradients: true, stage3_max_live_parameters: 1e9", nil},
		{"allgather_partitions: false", []string{"zero_optimization.allgather_partitions = false: accepted without effect: "}},
		{"reduction_order: local", nil},
		{"stage: 2, reduction_order: local}\ngradient_accumulation_steps: 4\nbf16: {", nil},
		{"stage: 1, reduction_order: local}\ngradient_accumulation_steps: 4\nbf16: {", []string{"zero_optimization.reduction_order = local with gradient_accumulation_steps = 4: results depend on the world size"}},
		{"stage3_max_live_parameters: 1e7, offload_optimizer: {device: cpu, pin_memory: true}", []string{"zero_optimization.offload_optimizer", "zero_optimization.stage3_max_live_parameters = 10000000"}},
		{"offload_optimizer: {device: none}", nil},
		{"stage: 1}\nwandb: {enabled: false, project: x, team: null}\nflops_profiler: {profile_step: 7}\ntensorboard: {", nil},
		{"stage: 1}\nwandb: {enabled: true, project: x}\nactivation_checkpointing: {profile: true, number_checkpoints: 4}\ndump_state: {", []string{"dump_state"}},
		{"stage: 1}\nwandb: {enabled: true, project: x}\nactivation_checkpointing: {profile: true, number_checkpoints: 4}\ndump_state: true\nbf16: {", []string{"dump_state = true", "wandb: accepted without effect. ", "activation_checkpointing: accepted without effect. "}},
		{"stage: 1}\noptimizer: {type: AdamW, params: {adam_w_mode: false, torch_adam: true, weight_decay: 0}", []string{"optimizer.params.adam_w_mode = false", "optimizer.params.torch_adam = true"}},
	} {
		text := "train_batch_size: 8\nzero_optimization: {" + c.text + "}\n"
		got, err := Load(file(t, "c.yaml", text), nil)
		if strings.HasSuffix(c.text, "dump_state: {") {
			wantError(t, err, "dump_state = ", "true or false")
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if len(got.Warnings) != len(c.want) {
			t.Errorf("%s: %q", text, got.Warnings)
			continue
		}
		for i, w := range c.want {
			if !strings.HasPrefix(got.Warnings[i], w) || strings.Contains(got.Warnings[i], "\n") {
				t.Errorf("%q does not begin with %q", got.Warnings[i], w)
			}
		}
	}
}

// FuzzLoad: whatever a file holds, the answer is a configuration or errors of
// one line each, and never a panic; an accepted file survives the way through TOML.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{base, "train_batch_size: 8\nbf16: &a {enabled: true}\nfp16: *a\n", `{"train_batch_size": 8, "deepspeed": {"bf16": null}}`,
		"a: &x [*x]\n", "<<: 1\n", "? [a]\n: b\n", "!!binary x: y\n", "- - -\n", "[a]\n[[a]]", "train_batch_size: 8\nmodel: {type: !!str unet2d}", "x: |\n  y\n", "\"\\q\"", "{,}", "a: 'b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, ext := range []string{"toml", "yaml", "json"} {
			c, err := Load(file(t, "c."+ext, text), nil)
			if err == nil {
				roundTrip(t, c)
				continue
			}
			for _, line := range lines(t, err) {
				if !strings.Contains(line, "c."+ext+": ") {
					t.Errorf("%s: error on more than one line: %q", ext, err)
				}
			}
		}
	})
}
