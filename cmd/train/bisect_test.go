package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/bisect"
	"github.com/zerogap/zerogap/zero/fault"
)

var update = flag.Bool("update", false, "write the tables of docs/laboratory.md")

// labBase is a training in which every fault of the buckets has an occasion.
var labBase = []string{
	"data.kind=procedural", "data.train_samples=64", "model.sample_size=8", "model.block_out_channels=[8,8]",
	`model.down_block_types=["DownBlock2D","AttnDownBlock2D"]`, `model.up_block_types=["AttnUpBlock2D","UpBlock2D"]`,
	"model.norm_num_groups=4", "model.num_classes=5", "model.label_dropout=0.5", "model.parallel_branches=1",
	"model.self_conditioning=true", "model.shared_middle=true", "model.checkpoint_conv_in=true",
	"model.activation_checkpointing.mode=reentrant",
	"train_batch_size=8", "train_micro_batch_size_per_gpu=1", "comm.world=4", "bf16.enabled=true",
	"zero_optimization.overlap_comm=true", "zero_optimization.reduce_bucket_size=1000",
}

// occasion is what a fault needs beyond labBase.
func occasion(name string) []string {
	fp16 := []string{"bf16.enabled=false", "fp16.enabled=true", "fp16.hysteresis=1"}
	switch name {
	case fault.NaNSentinel, fault.NoSkip: // overflow in the first steps
		return append(fp16, "fp16.initial_scale_power=32")
	case fault.RankLocalSkip: // and, on the way down, in the shares of some ranks
		return append(fp16, "fp16.initial_scale_power=32")
	case fault.ClipAfterUpdateScale:
		return append(fp16, "fp16.initial_scale_power=8", "fp16.loss_scale_window=3", "gradient_clipping=0.1")
	}
	return nil
}

func labConfig(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	c, err := config.Load("", slices.Concat(labBase, sets), checks()...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func labTraining(t *testing.T, name string, c *config.Config, steps int) bisect.Training {
	t.Helper()
	tr, err := training(name, c, steps)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// firstStrike trains with a fault, and returns the parameter, the stage and the time
// of its first effect, as the fault itself tells it.
func firstStrike(t *testing.T, c *config.Config, plan *zero.Plan, steps int) (first fault.Strike, param string, told bool) {
	t.Helper()
	var mu sync.Mutex
	r := rehearsal{cfg: c, steps: steps}
	r.strike = func(s fault.Strike) {
		mu.Lock()
		defer mu.Unlock()
		if !told || earlier(s, first) {
			first, told = s, true
		}
	}
	if err := r.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if told && first.Element >= 0 {
		i, _ := plan.ParamAt(first.Element)
		param = plan.Name(i)
	}
	return first, param, told
}

func earlier(a, b fault.Strike) bool {
	micro := func(s fault.Strike) int {
		if s.Micro < 0 {
			return 1 << 20
		}
		return s.Micro
	}
	for _, d := range []int{a.Step - b.Step, micro(a) - micro(b), int(a.Life) - int(b.Life), a.Element - b.Element} {
		if d != 0 {
			return d < 0
		}
	}
	return a.Rank < b.Rank
}

// inaudible are the faults that strike where the optimizer does not see them, and the
// parameter at which they must be found: the first one, for all or the first segment's
// are affected, or any one.
var inaudible = map[string]string{
	fault.FirstBackwardEpilogue: "conv_in.weight",
	fault.ReentrantNoGradInput:  "conv_in.weight",
	fault.ScheduleInBF16:        "conv_in.weight",
	fault.NoSkip:                "",
	fault.RankLocalSkip:         "",
}

// verdict is what bisect made of one fault in one training.
type verdict struct{ step, stage, param, class, alone bool }

func (v verdict) String() string {
	for _, c := range []struct {
		ok   bool
		text string
	}{{v.step, "wrong step"}, {v.stage, "wrong stage"}, {v.param, "wrong parameter"}, {v.class, "class not named"}, {v.alone, "and another class"}} {
		if !c.ok {
			return c.text
		}
	}
	return "found"
}

// judge bisects one fault and holds the result against what the fault tells of itself.
func judge(t *testing.T, name string, stage int, seed uint64) verdict {
	t.Helper()
	sets := append(occasion(name), fmt.Sprintf("zero_optimization.stage=%d", stage), fmt.Sprintf("run.seed=%d", seed))
	a := labConfig(t, sets...)
	b := labConfig(t, append(sets, fmt.Sprintf("lab.fault=[%q]", name), fmt.Sprintf("lab.seed=%d", seed))...)
	const steps = 24
	r, err := bisect.Compare(context.Background(), labTraining(t, "a", a, steps), labTraining(t, "b", b, steps), steps)
	if err != nil {
		t.Errorf("%s, stage %d, seed %d: %v", name, stage, seed, err)
		return verdict{}
	}
	d := r.First
	if d == nil {
		t.Logf("%s, stage %d, seed %d: not found", name, stage, seed)
		return verdict{}
	}
	class, err := fault.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	v := verdict{stage: d.Life == class.Life, step: true, param: true}
	v.class = slices.ContainsFunc(d.Suspects, func(s bisect.Suspect) bool { return s.Class == name })
	v.alone = v.class && len(d.Suspects) == 1
	if param, is := inaudible[name]; is {
		v.param = param == "" || d.Param == param
	} else {
		s, param, told := firstStrike(t, b, labTraining(t, "b", b, steps).Plan, d.Step)
		v.step = told && d.Step == s.Step && d.Micro == s.Micro
		v.stage = v.stage && told && d.Life == s.Life
		v.param = told && d.Param == param && d.Element == s.Element
	}
	if v.String() != "found" {
		t.Logf("%s, stage %d, seed %d: %v\n%v", name, stage, seed, v, d)
	}
	return v
}

// TestBisectScore: every fault in stages 1 and 2 with three seeds: found in the step, at
// the stage and at the parameter that the fault itself tells of, and its class is named.
// With -update the table goes to docs/laboratory.md.
func TestBisectScore(t *testing.T) {
	seeds, stages := []uint64{1, 2, 3}, []int{1, 2}
	if testing.Short() && !*update {
		seeds, stages = seeds[:1], stages[1:]
	}
	var table strings.Builder
	table.WriteString("\n| fault | stage of life | ZeRO stage 1 | ZeRO stage 2 |\n|---|---|---|---|\n")
	for _, c := range fault.Classes() {
		fmt.Fprintf(&table, "| `%s` | %v |", c.Name, c.Life)
		for _, stage := range stages {
			right, other := 0, map[string]int{}
			for _, seed := range seeds {
				switch v := judge(t, c.Name, stage, seed); {
				case v.String() == "found":
					right++
				default:
					other[v.String()]++
					if !v.step || !v.stage || !v.param || !v.class {
						t.Errorf("%s, stage %d, seed %d: %v", c.Name, stage, seed, v)
					}
				}
			}
			fmt.Fprintf(&table, " %d of %d", right, len(seeds))
			for _, what := range sortedKeys(other) {
				fmt.Fprintf(&table, ", %d %s", other[what], what)
			}
			table.WriteString(" |")
		}
		table.WriteString("\n")
	}
	table.WriteString("\n")
	if len(seeds) == 3 {
		checkDocs(t, "../../docs/laboratory.md", "score", table.String())
	}
}

func sortedKeys(m map[string]int) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// checkDocs compares what stands between two marks of a document with text, and with
// -update writes it.
func checkDocs(t *testing.T, path, mark, text string) {
	t.Helper()
	begin, end := "<!-- begin "+mark+" -->\n", "<!-- end "+mark+" -->"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has lost the marks of %q", path, mark)
	}
	fresh := []byte(before + begin + text + end + after)
	if *update {
		if err := os.WriteFile(path, fresh, 0o666); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(old, fresh) {
		t.Errorf("%s is not up to date: run this test with -update", path)
	}
}

// knobsOf draws a way to run one and the same training.
func knobsOf(r *rand.Rand) []string {
	pick := func(key string, values ...any) string { return fmt.Sprintf("%s=%v", key, values[r.IntN(len(values))]) }
	flags := func(key string) string { return pick(key, true, false) }
	const z = "zero_optimization."
	return []string{
		pick(z+"stage", 0, 1, 2), pick(z+"reduce_bucket_size", 60, 97, 1000, 20000, 5e8), pick(z+"allgather_bucket_size", 100, 5000, 5e8),
		flags(z + "overlap_comm"), flags(z + "contiguous_gradients"), flags(z + "reduce_scatter"), flags(z + "round_robin_gradients"),
		flags(z + "use_multi_rank_bucket_allreduce"), pick("comm.world", 1, 2, 4, 8),
		pick("model.activation_checkpointing.mode", "none", "reentrant", "non_reentrant"), pick("model.activation_checkpointing.segments", 0, 1, 3),
	}
}

// TestBisectCleanPairs: 50 random pairs of ways to run one training have no
// difference.
func TestBisectCleanPairs(t *testing.T) {
	pairs := 50
	if testing.Short() {
		pairs = 8
	}
	r := rand.New(rand.NewPCG(1, 2))
	for k := range pairs {
		seed, steps := fmt.Sprintf("run.seed=%d", k), 2
		a, b := append(knobsOf(r), seed), append(knobsOf(r), seed)
		result, err := bisect.Compare(context.Background(), labTraining(t, "a", labConfig(t, a...), steps), labTraining(t, "b", labConfig(t, b...), steps), steps)
		if err != nil || result.First != nil || result.Steps != steps || result.Compared < 10 {
			t.Errorf("pair %d: %+v, %v\na %v\nb %v", k, result, err, a, b)
		}
	}
}

// TestBisectCommand: what the command prints, with a difference and without.
func TestBisectCommand(t *testing.T) {
	var sets []string
	for _, s := range labBase {
		sets = append(sets, "-set-a", s, "-set-b", s)
	}
	path := writeConfig(t, "")
	base := append([]string{"bisect", "-a", path, "-b", path, "-steps", "2"}, sets...)
	code, stdout, stderr := command(append(base, "-set-b", "zero_optimization.stage=2", "-set-b", "comm.world=2")...)
	if code != 0 || !strings.Contains(stdout, "no difference in 2 steps") {
		t.Errorf("equal trainings: exit code %d, %q, %s", code, stdout, stderr)
	}
	code, stdout, stderr = command(append(base, "-set-b", `lab.fault=["microstep-overwrite"]`)...)
	for _, part := range []string{"fold of step 1, micro-step 2, bucket ", "conv_in.weight, element 0", "microstep-overwrite", " in a, ", " in b"} {
		if code != 0 || !strings.Contains(stdout, part) {
			t.Errorf("exit code %d, %q lacks %q, %s", code, stdout, part, stderr)
		}
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"bisect"}, "-a FILE"},
		{[]string{"bisect", "-a", path, "-b", path, "-record", "x"}, "one of"},
		{[]string{"bisect", "-a", path, "-b", path, "-steps", "0"}, "-steps 0"},
		{append(base, "-set-b", "model.block_out_channels=[8,16]"), "trainings of one model"},
		{append(base, "-set-b", "train_batch_size=16"), "micro-batches a step"},
	} {
		if code, _, stderr := command(tc.args...); code == 0 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q, want %q", tc.args, code, stderr, tc.want)
		}
	}
}

// TestBisectAgainst: a training's own recording is its own; a recording of another is
// found at the step, rank and parameter where it is another, and a small difference is
// none with a tolerance.
func TestBisectAgainst(t *testing.T) {
	var sets []string
	for _, s := range labBase {
		sets = append(sets, "-set-a", s)
	}
	dir := filepath.Join(t.TempDir(), "recorded")
	base := append([]string{"bisect", "-a", writeConfig(t, ""), "-steps", "2"}, sets...)
	if code, stdout, stderr := command(append(base, "-record", dir)...); code != 0 || !strings.Contains(stdout, "2 steps and 4 ranks") {
		t.Fatalf("exit code %d, %q, %s", code, stdout, stderr)
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"no difference in 2 steps of 4 ranks"}},
		{[]string{"-set-a", "zero_optimization.stage=2", "-set-a", "zero_optimization.reduce_bucket_size=5e8"}, []string{"no difference"}},
		{[]string{"-set-a", `lab.fault=["reentrant-no-grad-input"]`}, []string{"local gradient of step 1, rank 0", "conv_in.weight, element 0", "0 here"}},
		{[]string{"-set-a", `lab.fault=["ring-order"]`}, []string{"local gradient of step 2, rank 0", "1 steps without"}},
	} {
		code, stdout, stderr := command(append(slices.Concat(base, tc.args), "-against", dir)...)
		for _, part := range tc.want {
			if code != 0 || !strings.Contains(stdout, part) {
				t.Errorf("%v: exit code %d, %q lacks %q, %s", tc.args, code, stdout, part, stderr)
			}
		}
	}
	code, _, stderr := command(append(base, "-set-a", "comm.world=2", "-against", dir)...)
	if code != 2 || !strings.Contains(stderr, "rank-2.safetensors exists, and the training has 2 ranks") {
		t.Errorf("another world size: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := command(append(base, "-against", t.TempDir())...); code != 2 || !strings.Contains(stderr, "wanted are step-1") {
		t.Errorf("an empty folder: exit code %d, %s", code, stderr)
	}
}
