package config

import (
	"fmt"
	"slices"
	"strings"
)

// Key is one row of the table: all that is known of one configuration key.
type Key struct {
	Path    string // dotted, as in "zero_optimization.stage"
	Kind    Kind
	Default any    // nil: none, or derived from other values
	Derived string // what the value is when it is absent and Default is nil
	Range   Range  // of Int, Float and the elements of Ints and FloatPair
	Allowed []string
	// Elsewhere lists values that DeepSpeed knows and zerogap does not.
	Elsewhere []string
	FoldCase  bool // letters of either case match Allowed
	Status    Status
	Doc       string // what it means, or why it has no effect or is refused
}

// Section is a group of keys with a common prefix.
type Section struct {
	Path string // "" is the top level
	Doc  string
	Own  bool // not DeepSpeed's
}

// Kind is the type of a key's value.
type Kind uint8

// The kinds. Values are never converted from one to another, but for whole
// numbers that are written as floats (5e8) and floats that are written as
// whole numbers (1).
const (
	Bool Kind = iota
	Int
	Float
	String
	Enum      // a string from Key.Allowed
	DType     // fp32, bf16 or fp16
	Ints      // list of Int
	Enums     // list of Enum
	FloatPair // list of two Float
	List      // list of anything; for keys without effect
	Object    // section of which nothing is looked at but enabled
)

func (k Kind) String() string {
	return [...]string{"boolean", "whole number", "number", "string", "string", "dtype", "list of whole numbers",
		"list of strings", "list of two numbers", "list", "section"}[k]
}

// Status says what becomes of a key.
type Status uint8

const (
	// Honoured keys do what their meaning says.
	Honoured Status = iota
	// NoEffect keys have no meaning here and cannot change results: they are
	// accepted, and a value other than the default gives a warning.
	NoEffect
	// Refused keys would change results if they were ignored: only the default
	// is accepted.
	Refused
)

func (s Status) String() string {
	return [...]string{"honoured", "no effect", "refused"}[s]
}

// Range limits a number. The zero Range allows every finite number.
type Range struct {
	text string
	ok   func(float64) bool
}

func (r Range) allows(x float64) bool { return r.ok == nil || r.ok(x) }

func atLeast(min float64) Range {
	return Range{fmt.Sprintf("at least %g", min), func(x float64) bool { return x >= min }}
}

func above(min float64) Range {
	return Range{fmt.Sprintf("above %g", min), func(x float64) bool { return x > min }}
}

func between(min, max float64) Range {
	return Range{fmt.Sprintf("from %g to %g", min, max), func(x float64) bool { return x >= min && x <= max }}
}

// below is min ≤ x < max.
func below(min, max float64) Range {
	return Range{fmt.Sprintf("at least %g and below %g", min, max), func(x float64) bool { return x >= min && x < max }}
}

// want says in words what values the key takes.
func (k *Key) want() string {
	var s string
	switch k.Kind {
	case Enum:
		return "allowed are " + strings.Join(k.Allowed, ", ")
	case DType:
		return "allowed are fp32, bf16, fp16"
	case Enums:
		return "must be a list of " + strings.Join(k.Allowed, ", ")
	case Bool:
		return "must be true or false"
	case Int, Float, String, Object:
		s = "must be a " + k.Kind.String()
	case List:
		return "must be a list"
	case Ints, FloatPair:
		s = "must be a " + k.Kind.String() + ", each"
		if k.Range.text == "" {
			return strings.TrimSuffix(s, ", each")
		}
		return s + " " + k.Range.text
	}
	if k.Range.text != "" {
		s += " " + k.Range.text
	}
	return s
}

// section returns the part of a path before the last dot.
func sectionOf(path string) string {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i]
	}
	return ""
}

// leafOf returns the part of a path after the last dot.
func leafOf(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// Keys returns the table: every key that a configuration may hold, grouped by
// section, in the order of the documentation. The caller owns the slice.
func Keys() []Key {
	return slices.Concat(topKeys(), precisionKeys(), zeroKeys(), optimizerKeys(), monitorKeys(), otherKeys(),
		modelKeys(), diffusionKeys(), dataKeys(), runKeys(), commKeys(), labKeys())
}

// Sections returns the sections in the order of their first key in Keys.
func Sections() []Section {
	return []Section{
		{Path: "", Doc: "Written before the first section of a TOML file."},
		{Path: "data_types", Doc: "Number formats of the training state."},
		{Path: "bf16", Doc: "bfloat16 parameters, activations and gradients, with fp32 master weights."},
		{Path: "fp16", Doc: "IEEE half parameters, activations and gradients, with fp32 master weights and a loss scale."},
		{Path: "torch_autocast", Doc: "Casts chosen by PyTorch, operation by operation."},
		{Path: "zero_optimization", Doc: "The ZeRO optimizer. Apart from `reduction_order`, `load_from_fp32_weights` and the keys marked refused, nothing in here changes a bit of training: these keys trade memory against time."},
		{Path: "optimizer", Doc: "Without this section, AdamW with the defaults below."},
		{Path: "optimizer.params", Doc: "Names of `torch.optim`. A parameter that the chosen type does not have is an error."},
		{Path: "scheduler", Doc: "Without this section the learning rate is constant."},
		{Path: "scheduler.params", Doc: "A parameter that the chosen type does not have is an error."},
		{Path: "csv_monitor", Doc: "One CSV file for each series, written by rank 0."},
		{Path: "tensorboard", Doc: "Event files for TensorBoard, written by rank 0."},
		{Path: "wandb", Doc: "Nothing is sent anywhere; use csv_monitor."},
		{Path: "comet", Doc: "Nothing is sent anywhere; use csv_monitor."},
		{Path: "flops_profiler", Doc: "Arithmetic and time of one step by module, see docs/profiling.md."},
		{Path: "comms_logger", Doc: "What each collective moved and how long it took."},
		{Path: "timers.throughput", Doc: "The progress line always shows samples a second."},
		{Path: "activation_checkpointing", Doc: "DeepSpeed's section says how checkpointed activations are stored on GPUs, not whether there are any: that is `model.activation_checkpointing` here."},
		{Path: "checkpoint", Doc: "How DeepSpeed writes checkpoints."},
		{Path: "model", Own: true, Doc: "The network: diffusers' UNet2DModel under its own parameter names. The defaults of sizes and blocks are those of a small network for MNIST, the others diffusers'."},
		{Path: "model.activation_checkpointing", Own: true, Doc: "Trades time for activation memory; never changes a bit of training."},
		{Path: "diffusion", Own: true, Doc: "The noise schedule, the target and the sampler, under diffusers' names."},
		{Path: "data", Own: true, Doc: "The pictures."},
		{Path: "run", Own: true, Doc: "What a run does and where it leaves its results."},
		{Path: "comm", Own: true, Doc: "The ranks and how they talk."},
		{Path: "lab", Own: true, Doc: "Mistakes on purpose: each key of this section makes the training wrong."},
	}
}
