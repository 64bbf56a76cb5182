package zero

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// manifest is a text of everything that must be equal on all ranks, one fact a
// line: configuration, groups, and each parameter with a hash of its initial
// weights.
func manifest(params []Param, cfg Config, groups []Group, parts []string) string {
	var b strings.Builder
	z := cfg.ZeroOptimization
	for _, f := range []struct {
		key   string
		value any
	}{
		{"gradient_accumulation_steps", cfg.GradientAccumulationSteps},
		{"managed_gradient_accumulation", cfg.ManagedGradientAccumulation},
		{"gradient_clipping", cfg.GradientClipping},
		{"gradient_allreduce_op", cfg.GradientAllreduceOp},
		{"prescale_gradients", cfg.PrescaleGradients},
		{"gradient_predivide_factor", cfg.GradientPredivideFactor},
		{"check_grad_overflow", cfg.CheckGradOverflow},
		{"max_consecutive_skips", cfg.MaxConsecutiveSkips},
		{"zero_optimization.stage", z.Stage},
		{"zero_optimization.reduce_bucket_size", z.ReduceBucketSize},
		{"zero_optimization.allgather_bucket_size", z.AllgatherBucketSize},
		{"zero_optimization.overlap_comm", z.OverlapComm},
		{"zero_optimization.reduction_order", z.ReductionOrder},
		{"zero_optimization.reduce_scatter", z.ReduceScatter},
		{"zero_optimization.contiguous_gradients", z.ContiguousGradients},
		{"zero_optimization.use_multi_rank_bucket_allreduce", z.UseMultiRankBucketAllreduce},
		{"zero_optimization.round_robin_gradients", z.RoundRobinGradients},
		{"zero_optimization.ignore_unused_parameters", z.IgnoreUnusedParameters},
		{"zero_optimization.load_from_fp32_weights", z.LoadFromFP32Weights},
		{"data types", cfg.Policy()},
		{"fp16", fmt.Sprintf("%+v", cfg.FP16)},
		{"lab.fault", parts},
		{"groups", len(groups)},
		{"parameters", len(params)},
	} {
		fmt.Fprintf(&b, "%s = %v\n", f.key, f.value)
	}
	for i, g := range groups {
		fmt.Fprintf(&b, "group %d: optimizer = %v, learning rate times %g\n", i, g.Rule, g.LRScale)
	}
	for i, p := range params {
		fmt.Fprintf(&b, "parameter %d: %q, shape %v", i, p.Name, p.Shape)
		if p.DType != "" {
			fmt.Fprintf(&b, ", %s", p.DType)
		}
		if p.Frozen {
			b.WriteString(", frozen")
		}
		fmt.Fprintf(&b, ", group %d, initial weights %016x\n", p.Group, hashWeights(p))
	}
	return b.String()
}

// hashWeights is FNV-1a over words of 32 bits.
func hashWeights(p Param) uint64 {
	h := uint64(14695981039346656037)
	const prime = 1099511628211
	for _, w := range p.Init {
		h = (h ^ uint64(math.Float32bits(w))) * prime
	}
	if len(p.Init) == 0 {
		for i := range p.Value.Len() {
			h = (h ^ math.Float64bits(p.Value.At(i))) * prime
		}
	}
	return h
}

// agree compares the ranks' manifests and returns their hash. When they differ it
// returns, on every rank, an error with the first difference and both sides of it.
func agree(ctx context.Context, c comm.Communicator, text string) (uint64, error) {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	sum := hash.Sum64()
	const fields = 2 // the hash in two halves
	all := dtype.Make(dtype.F64, fields*c.Size())
	bounds := make([]int, c.Size()+1)
	for r := range bounds {
		bounds[r] = fields * r
	}
	mine := all.Slice(bounds[c.Rank()], bounds[c.Rank()+1])
	copy(mine.F64, []float64{float64(sum >> 32), float64(sum & math.MaxUint32)})
	err := comm.Do(ctx, c, &comm.Op{
		Kind: comm.AllGather, Bounds: bounds, Send: mine, Recv: all,
		Sig: comm.Signature{Name: "layout hash", Bucket: -1},
	})
	if err != nil {
		return 0, err
	}
	differ := false
	for r := range c.Size() {
		f := all.F64[bounds[r]:bounds[r+1]]
		differ = differ || f[0] != all.F64[0] || f[1] != all.F64[1]
	}
	if !differ {
		return sum, nil
	}
	texts, err := comm.Texts(ctx, c, "layout", text)
	if err != nil {
		return 0, err
	}
	return 0, firstDifference(texts)
}

// disagreement is what every rank finds when they are set up differently.
type disagreement struct{ text string }

func (d *disagreement) Error() string { return "the ranks are set up differently: " + d.text }

// firstDifference compares every text with rank 0's, line by line.
func firstDifference(texts []string) error {
	first := strings.Split(texts[0], "\n")
	bestLine, bestRank := len(first), 0
	for r, text := range texts[1:] {
		other := strings.Split(text, "\n")
		for i := range min(len(first), len(other), bestLine) {
			if first[i] != other[i] {
				bestLine, bestRank = i, r+1
				break
			}
		}
	}
	if bestRank == 0 {
		return &disagreement{"their lists of parameters differ in length"}
	}
	other := strings.Split(texts[bestRank], "\n")
	return &disagreement{fmt.Sprintf("rank 0 has %s; rank %d has %s", first[bestLine], bestRank, other[bestLine])}
}
