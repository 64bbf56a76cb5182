package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/zerogap/zerogap/dtype"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

// file writes a configuration and returns its path.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lines returns the single errors of a failed Load.
func lines(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	return strings.Split(err.Error(), "\n")
}

// wantError fails unless there is exactly one error and it contains all words.
func wantError(t testing.TB, err error, words ...string) {
	t.Helper()
	got := lines(t, err)
	if len(got) != 1 {
		t.Errorf("%d errors, want one:\n%s", len(got), err)
	}
	for _, w := range words {
		if !strings.Contains(got[0], w) {
			t.Errorf("error lacks %q: %s", w, got[0])
		}
	}
}

// effective drops what Config.TOML does not keep.
var effective = cmpopts.IgnoreFields(Config{}, "Warnings", "WorldOrigin")

func TestRunnableConfigurations(t *testing.T) {
	paths, err := filepath.Glob("../../configs/*.*") // cluster/ has none
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 4 {
		t.Fatalf("found %v", paths)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, err := Load(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Load(file(t, "effective.toml", string(c.TOML())), nil)
			if err != nil {
				t.Fatalf("effective configuration:\n%s\n%v", c.TOML(), err)
			}
			if d := cmp.Diff(c, back, effective); d != "" {
				t.Error(d)
			}
		})
	}
}

// The three stages promise the same weights, so their files may differ in
// nothing that decides them.
func TestStagesDifferInStageOnly(t *testing.T) {
	want, err := Load("../../configs/zero2.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	for stage, name := range []string{"zero0", "zero1"} {
		c, err := Load("../../configs/"+name+".toml", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.ZeroOptimization.Stage != stage || c.Run.Out != "out/"+name {
			t.Errorf("%s: stage %d, out %s", name, c.ZeroOptimization.Stage, c.Run.Out)
		}
		c.ZeroOptimization.Stage, c.Run.Out, c.CSVMonitor.JobName = 2, want.Run.Out, want.CSVMonitor.JobName
		if d := cmp.Diff(want, c, effective); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if len(c.Warnings) > 0 {
			t.Errorf("%s: warnings %q", name, c.Warnings)
		}
	}
}

func TestSeedConfiguration(t *testing.T) {
	c, err := Load("../../configs/seed.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.ZeroOptimization.Stage, c.ModelDType(), c.DataTypes.GradAccumDType, c.CommunicationDataType,
		c.GradientClipping, c.ZeroOptimization.OverlapComm, c.ZeroOptimization.ContiguousGradients,
		c.Model.ActivationCheckpointing.Mode, c.Comm.World, c.TrainMicroBatchSizePerGPU, c.TrainBatchSize}
	want := []any{2, dtype.BF16, dtype.F32, dtype.BF16, 1.0, true, true, "reentrant", 8, 1, 8}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "flops_profiler") {
		t.Errorf("warnings %q", c.Warnings)
	}
}

// One configuration in all the forms it may be written in.
func TestFormatsAgree(t *testing.T) {
	forms := map[string]string{
		"a.toml": "train_batch_size = 8\ncommunication_data_type = \"fp32\"\n[bf16]\nenabled = true\n[zero_optimization]\nstage = 2\nreduce_bucket_size = 5e5\noverlap_comm = true\n" +
			"[optimizer]\ntype = \"adamw\"\nparams = {lr = 1e-4, betas = [0.95, 0.999]}\n[model]\nnorm_eps = 1e-6\nblock_out_channels = [8, 16, 24]\n[comm]\nworld = 2\n",
		"nested.toml": "comm.world = 2\nmodel = {norm_eps = 1e-6, block_out_channels = [8, 16, 24]}\n[deepspeed]\ntrain_batch_size = 8\ncommunication_data_type = \"fp32\"\nbf16.enabled = true\n" +
			"[deepspeed.zero_optimization]\nstage = 2\nreduce_bucket_size = 500_000\noverlap_comm = true\n[deepspeed.optimizer]\ntype = \"AdamW\"\nparams = {lr = 1e-4, betas = [0.95, 0.999]}\n",
		"a.json": `{"train_batch_size": 8, "communication_data_type": "fp32", "bf16": {"enabled": true},
			"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e5, "overlap_comm": true, "offload_optimizer": null},
			"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.95, 0.999]}},
			"model": {"norm_eps": 1e-6, "block_out_channels": [8, 16, 24]}, "comm": {"world": 2}}`,
		"nested.yaml": "deepspeed:\n  train_batch_size: 8\n  communication_data_type: fp32\n  bf16: {enabled: True}\n  fp16:\n" +
			"  zero_optimization:\n    stage: 2\n    reduce_bucket_size: 5e5\n    overlap_comm: true\n    offload_optimizer: null\n" +
			"  optimizer:\n    type: Adam\n    params:\n      lr: 1e-4\n      betas: [0.95, 0.999]\n" +
			"model:\n  norm_eps: 1e-6\n  block_out_channels:\n    - 8\n    - 16\n    - 24\ncomm: {world: 2}\n",
		"merged.yml": "zero_optimization: &z {stage: 2, overlap_comm: true, reduce_bucket_size: 500_000}\nbf16: &on {enabled: true}\ntrain_batch_size: &b 8\n" +
			"communication_data_type: fp32\noptimizer: {type: AdamW, params: {lr: 1e-4, betas: [0.95, 0.999]}}\nmodel: {norm_eps: 1e-6, block_out_channels: [*b, 16, 24]}\ncomm: {<<: {world: 3}, world: 2}\n",
	}
	want, err := Load(file(t, "a.toml", forms["a.toml"]), nil)
	if err != nil {
		t.Fatal(err)
	}
	if z := want.ZeroOptimization; z.ReduceBucketSize != 500000 || z.Stage != 2 || !z.OverlapComm || want.Optimizer.Params.Betas != [2]float64{0.95, 0.999} {
		t.Fatalf("%+v", want)
	}
	for name, text := range forms {
		got, err := Load(file(t, name, text), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, got, effective); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if len(got.Warnings) > 0 {
			t.Errorf("%s: warnings %q", name, got.Warnings)
		}
	}
}

func TestPrecedence(t *testing.T) {
	path := file(t, "c.toml", "train_batch_size = 8\n[zero_optimization]\nstage = 1\nreduce_bucket_size = 7\n")
	c, err := Load(path, []string{"zero_optimization.stage=2", "run.seed = 5", "run.seed=6", "deepspeed.bf16.enabled=true",
		"optimizer.params={lr=0.5}", "data.kind=procedural", `run.out="a b"`, "zero_optimization.allgather_bucket_size=1e3", "data.path=/tmp/x=y"})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.ZeroOptimization.Stage, c.ZeroOptimization.ReduceBucketSize, c.ZeroOptimization.AllgatherBucketSize, c.Run.Seed, c.BF16.Enabled,
		c.Optimizer.Params.LR, c.Optimizer.Params.Eps, c.Data.Kind, c.Run.Out, c.Data.Path, c.Run.Steps}
	want := []any{2, 7, 1000, uint64(6), true, 0.5, 1e-8, "procedural", "a b", "/tmp/x=y", 800}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDerivedDefaults(t *testing.T) {
	c, err := Load("", []string{"train_batch_size=4", "bf16.enabled=true", "model.sample_size=28", "model.in_channels=3", "model.norm_num_groups=4"})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.CommunicationDataType, c.DataTypes.GradAccumDType, c.Model.OutChannels, c.Data.Channels, c.Data.ImageSize, c.Scheduler.Type,
		c.GradientClipping, c.ZeroOptimization.OverlapComm, c.WorldOrigin}
	want := []any{dtype.BF16, dtype.F32, 3, 3, 28, "constant", 1.0, false, "the default of comm.world"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDocumentation(t *testing.T) {
	const path = "../../docs/configuration.md"
	want := Markdown()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the table says: run go generate ./internal/config", path)
	}
	for _, k := range Keys() {
		if n := bytes.Count(want, []byte("\n| `"+leafOf(k.Path)+"` |")); n < 1 {
			t.Errorf("%s is not documented", k.Path)
		}
	}
}

// The table and the structs name the same keys with the same types, and every
// default is a value that the key itself accepts.
func TestTable(t *testing.T) {
	goTypes := map[Kind]string{Bool: "bool", Int: "int", Float: "float64", String: "string", Enum: "string", DType: "dtype.DType",
		Ints: "[]int", Enums: "[]string", FloatPair: "[2]float64"}
	sections := map[string]bool{}
	for _, s := range Sections() {
		sections[s.Path] = true
	}
	fields, seen := fieldsOf(new(Config)), map[string]bool{}
	for _, k := range Keys() {
		if seen[k.Path] {
			t.Errorf("%s stands in the table twice", k.Path)
		}
		seen[k.Path] = true
		f, bound := fields[k.Path]
		if bound && f.Type().String() != goTypes[k.Kind] && !(k.Path == "run.seed" && f.Kind() == reflect.Uint64) {
			t.Errorf("%s: field of type %s for a %s", k.Path, f.Type(), k.Kind)
		}
		// param_dtype only repeats what bf16 and fp16 say.
		if !bound && k.Status == Honoured && k.Path != "data_types.param_dtype" {
			t.Errorf("%s is honoured and has no field", k.Path)
		}
		if !sections[sectionOf(k.Path)] {
			t.Errorf("%s: section is not in Sections", k.Path)
		}
		if k.Doc == "" || strings.ContainsAny(k.Doc, "\n|") {
			t.Errorf("%s: meaning %q", k.Path, k.Doc)
		}
		if k.Default != nil {
			if _, err := k.convert(k.Default); err != nil {
				t.Errorf("%s: default %v: %v", k.Path, k.Default, err)
			}
		}
	}
	for path := range fields {
		if !seen[path] {
			t.Errorf("field %s is not in the table", path)
		}
	}
}
