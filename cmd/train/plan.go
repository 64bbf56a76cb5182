package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
)

// maxPlanBuckets bounds what a prediction may cost: it visits every bucket.
const maxPlanBuckets = 1_000_000

// scenario is what a prediction is about.
type scenario struct {
	params []zero.Param // shapes only
	cfg    zero.Config
	rule   zero.Rule
	model  string
	// micro is the samples of a micro-batch and batches the micro-batches of
	// an optimizer step over all ranks; 0 where only a size is known, and the
	// accumulation of cfg holds at every world size.
	micro, batches int
	// activations and curve are those of a micro-batch, where the model is known.
	activations int64
	curve       []segmentPlan
}

// accumulation returns the micro-batches of a rank, and what the batch comes to.
func (s *scenario) accumulation(world int) (steps, batch int) {
	if s.batches == 0 {
		return s.cfg.GradientAccumulationSteps, 0
	}
	steps = (s.batches + world - 1) / world
	return steps, s.micro * steps * world
}

// planCommand is "train plan".
func planCommand(args []string, stdout, stderr io.Writer) error {
	p, err := parsePlan(args, stderr)
	if err != nil {
		return err
	}
	s, err := p.scenario(stderr)
	if err != nil {
		return usageError{err}
	}
	rows, err := s.predict(p.stages, p.worlds)
	if err != nil {
		return usageError{err}
	}
	if p.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(s.document(rows))
	}
	text, err := p.times.table(s, rows)
	if err != nil {
		return usageError{err}
	}
	_, err = io.WriteString(stdout, s.table(rows)+text)
	return err
}

// planOptions is the command line of "train plan".
type planOptions struct {
	config         string
	sets           repeated
	params         count
	dtype          string
	wire           string
	accumDType     string
	optimizer      string
	bucket, gather count
	accum          int
	overlap        bool
	worlds, stages list
	json           bool
	times          timeOptions
}

// count is a flag for a number of elements, which may be written as 7.5e9.
type count int

func (c *count) String() string { return strconv.Itoa(int(*c)) }

func (c *count) Set(s string) error {
	x, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil || x < 1 || x > 1<<53 || x != math.Trunc(x) {
		return errors.New("want a whole number from 1 to 2^53, such as 1000000000 or 1e9")
	}
	*c = count(x)
	return nil
}

// list is a flag for whole numbers with commas between them.
type list []int

func (l *list) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*l)), " ", ","), "[]")
}

func (l *list) Set(s string) error {
	*l = nil
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 || n > 1<<20 {
			return errors.New("want whole numbers with commas between them, such as 1,2,4")
		}
		*l = append(*l, n)
	}
	return nil
}

func parsePlan(args []string, stderr io.Writer) (*planOptions, error) {
	p := &planOptions{bucket: 5e8, gather: 5e8, worlds: list{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, stages: list{0, 1, 2}}
	f := newFlags("plan")
	f.StringVar(&p.config, "config", "", "configuration `file`: its model, formats and batch size; micro-batches a step stay what they are at every world size")
	f.Var(&p.sets, "set", "`key=value` overrides a configuration key; may be repeated")
	f.Var(&p.params, "params", "`number` of trainable parameters, as one, instead of a configuration; 7.5e9 is a number too")
	f.StringVar(&p.dtype, "dtype", "bf16", "with -params: `format` of parameters and activations: fp32, bf16, fp16")
	f.StringVar(&p.wire, "comm-dtype", "", "with -params: `format` of gradients on the wire (default that of -dtype)")
	f.StringVar(&p.accumDType, "accum-dtype", "fp32", "with -params: `format` of the gradient accumulators")
	f.StringVar(&p.optimizer, "optimizer", "AdamW", "with -params: `rule`: AdamW, Adam, Lion, SGD (with momentum)")
	f.Var(&p.bucket, "bucket", "with -params: reduce_bucket_size, in `elements`")
	f.Var(&p.gather, "allgather-bucket", "with -params: allgather_bucket_size, in `elements`")
	f.IntVar(&p.accum, "accum", 1, "with -params: gradient accumulation `steps`, at every world size")
	f.BoolVar(&p.overlap, "overlap", false, "with -params: overlap_comm")
	f.Var(&p.worlds, "world", "world `sizes`")
	f.Var(&p.stages, "stage", "ZeRO `stages`")
	f.BoolVar(&p.json, "json", false, "print JSON, in bytes")
	p.times.flags(f)
	if err := parseFlags(f, args, stderr); err != nil {
		return nil, err
	}
	switch {
	case (p.config == "") == (p.params == 0):
		return nil, usageError{errors.New("give one of -config and -params: for example -config configs/zero2.toml, or -params 1e9")}
	case p.config == "" && len(p.sets) > 0:
		return nil, usageError{errors.New("-set belongs to -config: beside -params write -dtype, -bucket, -accum and so on")}
	}
	var err error
	f.Visit(func(fl *flag.Flag) {
		if p.config != "" && strings.HasPrefix(fl.Usage, "with -params") {
			err = usageError{fmt.Errorf("-%s belongs to -params: beside -config write -set with the configuration's key", fl.Name)}
		}
	})
	return p, err
}

func (p *planOptions) scenario(stderr io.Writer) (*scenario, error) {
	if p.config != "" {
		return fromConfig(p.config, p.sets, stderr)
	}
	s := &scenario{
		params: []zero.Param{{Name: "parameters", Shape: []int{int(p.params)}}},
		cfg:    zero.DefaultConfig(), model: "one run of elements",
	}
	d, err := dtype.Parse(p.dtype)
	if err != nil || d == dtype.F64 {
		return nil, fmt.Errorf("-dtype %s: allowed are fp32, bf16, fp16", p.dtype)
	}
	s.cfg.BF16.Enabled, s.cfg.FP16.Enabled = d == dtype.BF16, d == dtype.F16
	s.cfg.CommunicationDataType, s.cfg.DataTypes.GradAccumDType = p.wire, p.accumDType
	s.cfg.GradientAccumulationSteps = p.accum
	s.cfg.ZeroOptimization.ReduceBucketSize, s.cfg.ZeroOptimization.AllgatherBucketSize = int(p.bucket), int(p.gather)
	s.cfg.ZeroOptimization.OverlapComm = p.overlap
	switch strings.ToLower(p.optimizer) {
	case "adamw":
		s.rule = zero.DefaultAdamW()
	case "adam":
		s.rule = zero.DefaultAdam()
	case "lion":
		s.rule = zero.DefaultLion()
	case "sgd":
		s.rule = zero.SGD{Momentum: 0.9}
	default:
		return nil, fmt.Errorf("-optimizer %s: allowed are AdamW, Adam, Lion, SGD", p.optimizer)
	}
	return s, s.cfg.Validate()
}

func fromConfig(path string, sets []string, stderr io.Writer) (*scenario, error) {
	c, err := config.Load(path, sets, checks()...)
	if err != nil {
		return nil, err
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(stderr, "train plan: warning: %s\n", w)
	}
	params, err := parameters(c)
	if err != nil {
		return nil, err
	}
	s := &scenario{
		cfg: zeroConfig(c), rule: rule(c), params: params, model: fmt.Sprintf("UNet2DModel %v in %d tensors", c.Model.BlockOutChannels, len(params)),
		micro: c.TrainMicroBatchSizePerGPU, batches: c.GradientAccumulationSteps * c.Comm.World,
	}
	if s.activations, err = activationMemory(c); err != nil {
		return nil, err
	}
	s.curve, err = activationCurve(c)
	return s, err
}

// prediction is one line: a rank at one stage and world size.
type prediction struct {
	stage, world, accum, batch int
	overlap, once              bool // overlap_comm; gradients are sent once a step
	plan                       *zero.Plan
	memory                     zero.Memory
	traffic                    zero.Traffic
}

// predict asks about rank 0, which holds the most.
func (s *scenario) predict(stages, worlds []int) ([]prediction, error) {
	elements := 0
	for _, p := range s.params {
		n, err := p.Len()
		if err != nil {
			return nil, err
		}
		elements += n
	}
	if size := s.cfg.ZeroOptimization.ReduceBucketSize; elements/size > maxPlanBuckets {
		return nil, fmt.Errorf("%s elements in buckets of %s are more than %s buckets: predict with a larger reduce_bucket_size", thousands(elements), thousands(size), thousands(maxPlanBuckets))
	}
	var rows []prediction
	for _, stage := range stages {
		for _, world := range worlds {
			cfg := s.cfg
			cfg.ZeroOptimization.Stage = stage
			r := prediction{stage: stage, world: world, overlap: cfg.ZeroOptimization.OverlapComm}
			r.once = cfg.ZeroOptimization.ReductionOrder == zero.OrderLocal && stage < 2
			r.accum, r.batch = s.accumulation(max(1, world))
			cfg.GradientAccumulationSteps = r.accum
			var err error
			if r.plan, err = zero.NewPlan(s.params, cfg, world); err != nil {
				return nil, err
			}
			r.memory, r.traffic = r.plan.Memory(0, s.rule, true), r.plan.Traffic(0)
			rows = append(rows, r)
		}
	}
	return rows, nil
}
