package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// base is a configuration to which one thing is added at a time. Top-level
// lines go before it.
const base = "train_batch_size = 8\n"

func TestBucketSize(t *testing.T) {
	const key = "zero_optimization.reduce_bucket_size"
	for _, v := range []string{"1", "500000000", "5e8", "500_000_000", "9007199254740992", "9007199254740992.0"} {
		c, err := Load(file(t, "c.toml", base+"[zero_optimization]\nreduce_bucket_size = "+v), nil)
		if err != nil {
			t.Errorf("%s: %v", v, err)
		} else if got := c.ZeroOptimization.ReduceBucketSize; v[0] == '5' && got != 500_000_000 || v == "1" && got != 1 || v[0] == '9' && got != 1<<53 {
			t.Errorf("%s is %d", v, got)
		}
	}
	for _, v := range []string{"0", "-1", "0.5", "15099494.4", "true", `"auto"`, `"5e8"`, "nan", "inf", "-inf", "[1]", "9007199254740993", "1e16", "2020-01-01"} {
		_, err := Load(file(t, "c.toml", base+"[zero_optimization]\nreduce_bucket_size = "+v), nil)
		shown := v
		if v == "1e16" || v == "2020-01-01" {
			shown = ""
		}
		wantError(t, err, key+" = "+shown, "must be a whole number at least 1")
	}
	// The same in YAML, where a plain scalar of this form is a number too.
	for v, ok := range map[string]bool{"5e8": true, "500_000_000": true, "5.0e+8": true, `"5e8"`: false, "auto": false, ".nan": false, "0": false, "null": false} {
		_, err := Load(file(t, "c.yaml", "train_batch_size: 8\nzero_optimization: {reduce_bucket_size: "+v+"}"), nil)
		if ok && err != nil {
			t.Errorf("%s: %v", v, err)
		}
		if !ok {
			wantError(t, err, key)
		}
	}
}

// Values that pass elsewhere and fail later, or never.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		text  string
		words []string
	}{
		{"[zero_optimization]\noverlap_comm = \"true\"", []string{`zero_optimization.overlap_comm = "true"`, "true or false, without quotes"}},
		{"[zero_optimization]\noverlap_comm = 1", []string{"zero_optimization.overlap_comm = 1", "true or false"}},
		{"[zero_optimization]\nstage = 3", []string{"zero_optimization.stage = 3", "not supported", "from 0 to 2"}},
		{"[zero_optimization]\nstage = 4", []string{"zero_optimization.stage = 4", "from 0 to 2"}},
		{"zero_optimization = 2", []string{"zero_optimization = 2", "section"}},
		{"[[zero_optimization]]\nstage = 2", []string{"zero_optimization = ", "section"}},
		{"[fp16]\nenabled = true\n[bf16]\nenabled = true", []string{"bf16.enabled", "fp16.enabled"}},
		{"gradient_clipping = -1", []string{"gradient_clipping = -1", "at least 0"}},
		{"gradient_clipping = nan", []string{"gradient_clipping = nan"}},
		{"gradient_clipping = inf", []string{"gradient_clipping = inf"}},
		{"gradient_clipping = \"1.0\"", []string{`gradient_clipping = "1.0"`, "without quotes"}},
		{"gradient_accumulation_steps = 0", []string{"gradient_accumulation_steps = 0", "at least 1"}},
		{"[data_types]\ngrad_accum_dtype = \"fp8\"", []string{`data_types.grad_accum_dtype = "fp8"`, "fp32, bf16, fp16"}},
		{"[data_types]\nparam_dtype = \"bf16\"", []string{"data_types.param_dtype", "fp32"}},
		{"[optimizer]\ntype = \"Lamb\"", []string{`optimizer.type = "Lamb"`, "not supported", "AdamW, Adam, SGD, Lion"}},
		{"[optimizer]\ntype = \"Admw\"", []string{`optimizer.type = "Admw"`, "allowed are AdamW, Adam"}},
		{"[optimizer]\ntype = \"SGD\"\nparams = {betas = [0.9, 0.99]}", []string{"optimizer.params.betas", "SGD has no such parameter"}},
		{"[optimizer]\ntype = \"SGD\"\nparams = {adam_w_mode = true}", []string{"optimizer.params.adam_w_mode = true", "SGD has no such parameter"}},
		{"[optimizer]\ntype = \"Lion\"\nparams = {eps = 1e-8}", []string{"optimizer.params.eps", "Lion has no such parameter"}},
		{"[optimizer]\nparams = {momentum = 0.9}", []string{"optimizer.params.momentum = 0.9", "AdamW has no such parameter"}},
		{"[optimizer]\ntype = \"SGD\"\nparams = {nesterov = true}", []string{"optimizer.params.nesterov = true", "momentum above 0"}},
		{"[optimizer]\ntype = \"SGD\"\nparams = {nesterov = true, momentum = 0.9, dampening = 0.1}", []string{"optimizer.params.nesterov = true", "dampening = 0, which is 0.1"}},
		{"[optimizer]\ntype = \"SGD\"\nparams = {momentum = -0.1}", []string{"optimizer.params.momentum = -0.1", "at least 0"}},
		{"[optimizer]\nparams = {max_grad_norm = 1.0}", []string{"optimizer.params.max_grad_norm = 1.0", "gradient_clipping"}},
		{"[optimizer]\nparams = {torch_adam = true}", []string{"optimizer.params.weight_decay", "0.01"}},
		{"[optimizer]\nparams = {betas = [0.9]}", []string{"optimizer.params.betas = [0.9]", "list of two numbers"}},
		{"[optimizer]\nparams = {betas = [0.9, 1.0]}", []string{"optimizer.params.betas = [0.9, 1.0]", "below 1"}},
		{"[scheduler]\ntype = \"OneCycle\"", []string{`scheduler.type = "OneCycle"`, "not supported", "WarmupCosineLR"}},
		{"[scheduler]\ntype = \"WarmupCosineLR\"", []string{"scheduler.params.total_num_steps", "needs it"}},
		{"[scheduler]\ntype = \"WarmupLR\"\nparams = {total_num_steps = 9}", []string{"scheduler.params.total_num_steps = 9", "WarmupLR has no such parameter"}},
		{"[scheduler]\nparams = {warmup_max_lr = 1.0}", []string{"scheduler.params.warmup_max_lr", "constant has no such parameter"}},
		{"[scheduler]\ntype = \"WarmupDecayLR\"\nparams = {total_num_steps = 10, warmup_num_steps = 10}", []string{"scheduler.params.total_num_steps = 10", "warm-up"}},
		{"[scheduler]\ntype = \"WarmupLR\"\nparams = {warmup_min_lr = 0.1, warmup_max_lr = 0.01}", []string{"scheduler.params.warmup_min_lr", "warmup_max_lr"}},
		{"[fp16]\nenabled = true\nmin_loss_scale = 4\ninitial_scale_power = 1", []string{"fp16.min_loss_scale", "2^1"}},
		{"[model]\nblock_out_channels = []", []string{"model.block_out_channels = []", "list of whole numbers"}},
		{"[model]\nblock_out_channels = [16, 0]", []string{"model.block_out_channels = [16, 0]", "each at least 1"}},
		{"[model]\ndown_block_types = [\"CrossAttnDownBlock2D\"]", []string{"model.down_block_types", "DownBlock2D, AttnDownBlock2D"}},
		{"[model]\nin_channels = 4\n[data]\nchannels = 3", []string{"data.channels: 3", "model.in_channels = 4"}},
		{"[model]\nin_channels = 3\nout_channels = 6", []string{"model.out_channels: 6", "model.in_channels = 3"}},
		{"[model]\nsample_size = 28\n[data]\nimage_size = 32", []string{"data.image_size: 32", "model.sample_size = 28"}},
		{"[data]\nkind = \"folder\"", []string{"data.path", "folder"}},
		{"[data]\nkind = \"emoji\"", []string{"data.path", "emoji-datasource-google", "docs/data.md"}},
		{"[diffusion]\nprediction_type = \"noise\"", []string{`diffusion.prediction_type = "noise"`, "epsilon, v_prediction, sample"}},
		{"[diffusion]\nbeta_start = 0.5", []string{"diffusion.beta_start", "diffusion.beta_end"}},
		{"[diffusion]\nnum_train_timesteps = 10\nsample_steps = 11", []string{"diffusion.sample_steps", "num_train_timesteps = 10"}},
		{"[diffusion]\nsampler = \"ddpm\"\neta = 0.5", []string{"diffusion.eta = 0.5", "ddpm"}},
		{"[comm]\nengine = \"nccl\"", []string{`comm.engine = "nccl"`, "auto, local, mpi"}},
		{"[run]\nseed = 9007199254740993", []string{"run.seed = 9007199254740993", "up to 2^53"}},
		{"[run]\nseed = -1", []string{"run.seed = -1", "at least 0"}},
		{"prescale_gradients = \"true\"", []string{"prescale_gradients = \"true\"", "true or false"}},
		{"gradient_predivide_factor = 0", []string{"gradient_predivide_factor = 0", "above 0"}},
		{"[zero_optimization]\nreduction_order = \"ring\"", []string{"zero_optimization.reduction_order", "global, local"}},
	} {
		_, err := Load(file(t, "c.toml", base+c.text), nil)
		if err == nil {
			t.Errorf("accepted:\n%s", c.text)
			continue
		}
		wantError(t, err, c.words...)
	}
	for text, f := range map[string]func(*Config) bool{
		"gradient_clipping = 0":                                                           func(c *Config) bool { return c.GradientClipping == 0 },
		"gradient_predivide_factor = 2":                                                   func(c *Config) bool { return c.GradientPredivideFactor == 2 },
		"[data_types]\ngrad_accum_dtype = \"fp16\"":                                       func(c *Config) bool { return c.DataTypes.GradAccumDType == dtype.F16 },
		"[fp16]\nenabled = true\n[bf16]\ncheck_grad_overflow = false":                     func(c *Config) bool { return c.BF16.CheckGradOverflow },
		"[bf16]\nenabled = true\n[data_types]\ngrad_accum_dtype = \"bf16\"":               func(c *Config) bool { return c.DataTypes.GradAccumDType == c.ModelDType() },
		"[scheduler]\ntype = \"WarmupLR\"\nparams = {warmup_num_steps = 0}":               func(c *Config) bool { return c.Scheduler.Params.WarmupNumSteps == 2 },
		"[optimizer]\ntype = \"ADAM\"\nparams = {adam_w_mode = true, lr = 1}":             func(c *Config) bool { return c.Optimizer.Type == "AdamW" && c.Optimizer.Params.LR == 1 },
		"[optimizer]\ntype = \"adam\"\nparams = {adam_w_mode = false}":                    func(c *Config) bool { return c.Optimizer.Type == "Adam" && !c.Optimizer.Params.AdamWMode },
		"[optimizer]\ntype = \"Adam\"\nparams = {adam_w_mode = false, torch_adam = true}": func(c *Config) bool { return c.Optimizer.Type == "Adam" && c.Optimizer.Params.WeightDecay == 0 },
		"[optimizer]\ntype = \"lion\"": func(c *Config) bool {
			return c.Optimizer.Type == "Lion" && c.Optimizer.Params.Betas == [2]float64{0.9, 0.99}
		},
		"[optimizer]\ntype = \"Lion\"\nparams = {betas = [0.95, 0.98]}": func(c *Config) bool { return c.Optimizer.Params.Betas == [2]float64{0.95, 0.98} },
		"[optimizer]\ntype = \"SGD\"\nparams = {momentum = 0.9, nesterov = true}": func(c *Config) bool {
			return c.Optimizer.Type == "SGD" && c.Optimizer.Params.Momentum == 0.9 && c.Optimizer.Params.Nesterov
		},
	} {
		if c, err := Load(file(t, "c.toml", base+text), nil); err != nil || !f(c) {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	for _, c := range []struct{ text, path, near string }{
		{"[zero_optimization]\nreduce_bucket_szie = 5", "zero_optimization.reduce_bucket_szie", "zero_optimization.reduce_bucket_size"},
		{"[zero_optimisation]\nreduce_bucket_szie = 5\nstage = 2", "zero_optimisation", "zero_optimization"},
		{"[deepspeed.zero_optimization]\nstagee = 2", "deepspeed.zero_optimization.stagee", "zero_optimization.stage"},
		{"reduce_bucket_size = 5", "reduce_bucket_size", "zero_optimization.reduce_bucket_size"},
		{"steps = 5", "steps", "run.steps"},
		{"[run]\nbatch = 5\n", "run.batch", "run."},
		{"[modle]\nlayers_per_block = 5", "modle", "model"},
		{"\"zero_optimization.stage\" = 2", `"zero_optimization.stage"`, "zero_optimization.stage"},
		{"\"\" = 2", `""`, ""},
		{"[deepspeed.model]\nlayers_per_block = 1", "deepspeed.model", "model"},
		{"[deepspeed.deepspeed.bf16]\nenabled = true", "deepspeed.deepspeed", ""},
		{"[labor]\nfault = 1", "labor", ""},
		{"gradient_cliping = 5", "gradient_cliping", "gradient_clipping"},
		{"[optimizer.params]\nLR = 5", "optimizer.params.LR", "optimizer.params.lr"},
	} {
		_, err := Load(file(t, "c.toml", base+c.text), nil)
		wantError(t, err, ": "+c.path+": unknown ", "nearest known key is "+c.near)
	}
	// A misspelt batch size is one mistake, not two.
	_, err := Load(file(t, "c.toml", "train_batch_szie = 8"), nil)
	wantError(t, err, "train_batch_szie", "nearest known key is train_batch_size")
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"szie", "size", 1}, {"Stage", "stage", 0}, {"ca", "abc", 3}, {"überlapp", "overlap", 3}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestDuplicateKeys(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // one for each error
	}{
		{"c.toml", "train_batch_size = 8\n[bf16]\nenabled = true\nenabled = false\n", []string{"line 4: duplicate key: Key 'bf16.enabled'"}},
		{"c.toml", "train_batch_size = 8\n[bf16]\nenabled = true\n[fp16]\n[bf16]\n", []string{"line 5: duplicate key: Key 'bf16'"}},
		{"c.json", "{\"train_batch_size\": 8,\n\"bf16\": {\n\"enabled\": true,\n\"enabled\": true},\n\"train_batch_size\": 8}", []string{"line 4: duplicate key: bf16.enabled", "line 5: duplicate key: train_batch_size"}},
		{"c.yaml", "train_batch_size: 8\nbf16:\n  enabled: true\n  enabled: false\ntrain_batch_size: 9\n", []string{"line 4: duplicate key: bf16.enabled, first given on line 3", "line 5: duplicate key: train_batch_size, first given on line 1"}},
		{"c.toml", "train_batch_size = 8\nbf16.enabled = true\n[deepspeed]\nbf16.enabled = false\n", []string{"duplicate key: bf16.enabled is given as deepspeed.bf16.enabled too"}},
	} {
		_, err := Load(file(t, c.name, c.text), nil)
		got := lines(t, err)
		if len(got) != len(c.want) {
			t.Errorf("%s:\n%s", c.text, err)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%q lacks %q", got[i], want)
			}
		}
	}
}

func TestBatchSizes(t *testing.T) {
	for _, c := range []struct {
		t, m, a, world int // 0 is not given
		want           [3]int
		err            []string
	}{
		{16, 2, 0, 4, [3]int{16, 2, 2}, nil},
		{16, 0, 2, 4, [3]int{16, 2, 2}, nil},
		{0, 2, 2, 4, [3]int{16, 2, 2}, nil},
		{16, 0, 0, 4, [3]int{16, 4, 1}, nil},
		{0, 3, 0, 4, [3]int{12, 3, 1}, nil},
		{16, 2, 2, 4, [3]int{16, 2, 2}, nil},
		{10, 4, 0, 1, [3]int{}, []string{"train_batch_size = 10", "train_micro_batch_size_per_gpu 4", "world 1"}},
		{10, 0, 4, 1, [3]int{}, []string{"train_batch_size = 10", "gradient_accumulation_steps 4", "world 1"}},
		{8, 2, 1, 1, [3]int{}, []string{"train_batch_size = 8", "train_micro_batch_size_per_gpu 2", "gradient_accumulation_steps 1", "world 1 = 2", "world comes from comm.world on the command line"}},
		{2, 0, 0, 4, [3]int{}, []string{"train_batch_size = 2", "world 4"}},
		{0, 0, 0, 4, [3]int{}, []string{"train_batch_size", "train_micro_batch_size_per_gpu"}},
		{0, 0, 2, 4, [3]int{}, []string{"train_batch_size", "train_micro_batch_size_per_gpu"}},
		{1 << 53, 1 << 53, 1 << 53, 1024, [3]int{}, []string{"train_batch_size = 9007199254740992"}},
		{0, 1 << 53, 1 << 53, 1024, [3]int{}, []string{"too large"}},
		{16, 1 << 53, 0, 1024, [3]int{}, []string{"not a multiple"}},
	} {
		sets := []string{fmt.Sprintf("comm.world=%d", c.world)}
		for key, n := range map[string]int{keyBatch: c.t, keyMicro: c.m, keyAccum: c.a} {
			if n > 0 {
				sets = append(sets, fmt.Sprintf("%s=%d", key, n))
			}
		}
		got, err := Load("", sets)
		if c.err != nil {
			wantError(t, err, c.err...)
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if b := [3]int{got.TrainBatchSize, got.TrainMicroBatchSizePerGPU, got.GradientAccumulationSteps}; b != c.want {
			t.Errorf("%+v: %v", c, b)
		}
	}
	for text, origin := range map[string]string{"": "the default of comm.world", "[comm]\nworld = 2": "comm.world in "} {
		_, err := Load(file(t, "c.toml", "train_batch_size = 7\ntrain_micro_batch_size_per_gpu = 3\n"+text), nil)
		wantError(t, err, "train_batch_size = 7", "world comes from "+origin)
	}
}

// TestALauncherDecidesTheWorld: over the file, not over the command line.
func TestALauncherDecidesTheWorld(t *testing.T) {
	path, w := file(t, "c.toml", "train_batch_size = 8\n[comm]\nworld = 2\n"), World{4, "mpirun"}
	c, err := LoadFor(w, path, nil)
	if err != nil || c.Comm.World != 4 || c.TrainMicroBatchSizePerGPU != 2 || c.WorldOrigin != "mpirun" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := LoadFor(w, path, []string{"comm.world=4"}); err != nil || c.Comm.World != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = LoadFor(w, path, []string{"comm.world=2"})
	wantError(t, err, "comm.world = 2", "mpirun has started 4")
	_, err = LoadFor(World{3, "mpirun"}, path, nil)
	wantError(t, err, "train_batch_size = 8", "world 3", "world comes from mpirun")
}

func TestAllErrorsAtOnce(t *testing.T) {
	path := file(t, "c.yaml", "train_batch_size: 8\nbogus: 1\nzero_optimization:\n  stage: 3\n  stage: 2\n  overlap_comm: 1\nbf16: 5\nsequence_parallel_size: 2\nscheduler: {type: WarmupCosineLR}\n")
	_, err := Load(path, []string{"run.steps=0", "nonsense", "data.kind=\"x"},
		Check{"model", func(*Config) error { return fmt.Errorf("model.act_fn: of the network") }},
		Check{"run", func(*Config) error { return fmt.Errorf("not called: run.steps is wrong") }})
	got := lines(t, err)
	for _, want := range []string{path + ": line 5: duplicate key: zero_optimization.stage", path + ": bogus: unknown key", path + ": zero_optimization.stage = 3",
		path + ": zero_optimization.overlap_comm = 1", path + ": bf16 = 5", path + ": sequence_parallel_size = 2", path + ": scheduler.params.total_num_steps",
		"-set: run.steps = 0", `-set "nonsense": must be key=value`, `-set "data.kind=\"x": neither`, path + ": model.act_fn: of the network"} {
		if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("no error begins with %q", want)
		}
	}
	if len(got) != 11 {
		t.Errorf("%d errors:\n%s", len(got), err)
	}
}

func TestSettings(t *testing.T) {
	for _, s := range []string{"", "=1", "a", ".=1", "a..b=1", "run.=1", "run steps=1", "run.steps=", "run.out=a\nb", "run.out=\"a", "run.steps=1\nx=2", "run.out=a\xffb", "run.steps=\"3\"", "run.out=1", "bf16=true", "run.stepz=1"} {
		if _, err := Load("", []string{"train_batch_size=1", s}); err == nil {
			t.Errorf("%q is accepted", s)
		} else {
			wantError(t, err, "-set")
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ path, word string }{
		{filepath.Join(dir, "none.toml"), "no such file"},
		{dir + "/x.ini", ".ini"},
		{dir + "/x", "extension"},
		{file(t, "big.toml", strings.Repeat("#", maxFile+1)), "no configuration"},
		{file(t, "bin.toml", "a = \"\xff\xfe\""), "UTF-8"},
		{file(t, "bad.toml", "a = \n"), "line 1"},
		{file(t, "bad.yaml", "a: [1\nb: 2"), "line 2"},
		{file(t, "two.yaml", "a: 1\n---\nb: 2\n"), "second document"},
		{file(t, "list.yaml", "- 1\n"), "keys with values"},
		{file(t, "bad.json", "{\"a\": 1,\n}"), "line 2"},
		{file(t, "cut.json", "{\"a\": 1"), "ends before"},
		{file(t, "empty.json", ""), "ends before"},
		{file(t, "more.json", "{} {}"), "more text"},
		{file(t, "list.json", "[1]"), "JSON object"},
		{file(t, "huge.json", `{"a": 1e999}`), "out of range"},
		{file(t, "alias.yaml", "train_batch_size: *x\n"), "&x"},
	} {
		_, err := Load(c.path, []string{"train_batch_size=1"})
		wantError(t, err, c.path, c.word)
	}
	folder := filepath.Join(dir, "folder.toml")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Load(folder, nil)
	wantError(t, err, folder, "directory")
	for _, name := range []string{"empty.toml", "empty.yaml"} {
		if _, err := Load(file(t, name, ""), []string{"train_batch_size=1"}); err != nil {
			t.Error(err)
		}
	}
}
