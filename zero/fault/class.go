// Package fault is the laboratory: the known mistakes of ZeRO trainers, each as another
// implementation of a piece that the correct optimizer has (zero.Parts), of the tape's
// checkpointing, or of the noise schedule. Correct code knows nothing of them. They are
// chosen by name alone, and a training with one carries its name.
//
// Every fault is deterministic. What a race leaves to chance in a real program (whether
// a buffer is overwritten while it is being sent, after how much of the reduction) is
// drawn from a stream that is keyed by the laboratory's seed, the step, the micro-step,
// the bucket and the rank: a run can be repeated bit for bit.
package fault

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/zero"
)

// Class is a kind of fault.
type Class struct {
	Name string
	// Mechanism says what goes wrong, in one sentence.
	Mechanism string
	// Life is the stage at which it first shows.
	Life zero.Life
	// piece is what the fault replaces; two of one slot do not go together.
	piece piece
}

// piece is a slot that one fault at a time can fill; free ones combine with all.
type piece int

const (
	free     piece = iota
	layout         // where gradients lie in a bucket
	flight         // what happens to a buffer between copy and reduction
	pick           // whose contributions count
	combine        // the sum over ranks
	add            // the accumulator
	skipping       // the rule that skips steps
)

// The names of the classes.
const (
	HookOrderLayout       = "hook-order-layout"
	ReuseInFlight         = "reuse-in-flight"
	OversizeLifetime      = "oversize-lifetime"
	PingpongReset         = "pingpong-reset"
	OneProducerWait       = "one-producer-wait"
	StaleTail             = "stale-tail"
	NotReadyShift         = "not-ready-shift"
	AccumDTypeIgnored     = "accum-dtype-ignored"
	FP32CopyDiscarded     = "fp32-copy-discarded"
	FirstBackwardEpilogue = "first-backward-epilogue"
	ReentrantNoGradInput  = "reentrant-no-grad-input"
	MicrostepOverwrite    = "microstep-overwrite"
	LastMicrobatchLocal   = "last-microbatch-local"
	NaNSentinel           = "nan-sentinel"
	NoSkip                = "no-skip"
	RankLocalSkip         = "rank-local-skip"
	RingOrder             = "ring-order"
	PredivideLowPrecision = "predivide-low-precision"
	ClipAfterUpdateScale  = "clip-after-update-scale"
	NormLocal             = "norm-local"
	ScheduleInBF16        = "schedule-in-bf16"
)

// Classes returns all of them, in the order in which they are documented.
func Classes() []Class {
	return []Class{
		{HookOrderLayout, "Gradients lie in a bucket in the order in which this rank's hooks fired, and nothing is agreed across ranks: where orders differ, different parameters are averaged.", zero.LifeCopy, layout},
		{ReuseInFlight, "With overlap_comm, a fill does not wait for the reduction of the bucket before last and overwrites what is still being sent. It takes three fills in a backward.", zero.LifeWire, flight},
		{OversizeLifetime, "With overlap_comm, a parameter larger than the bucket is reduced from its own gradient, whose memory is released and written by others meanwhile.", zero.LifeWire, free},
		{PingpongReset, "With overlap_comm, clearing a bucket resets the index of the two buffers: one is filled again and again while it is being sent.", zero.LifeWire, flight},
		{OneProducerWait, "Gradients are copied into a bucket by several producers, and the reduction waits for one of them.", zero.LifeWire, flight},
		{StaleTail, "The whole buffer is reduced and copied back, and not its filled part: what an earlier bucket left behind the filled part is added to the elements that follow.", zero.LifeFold, free},
		{NotReadyShift, "A gradient that is in no list takes room in a bucket, and all that follow it are read from the wrong place.", zero.LifeCopy, layout},
		{AccumDTypeIgnored, "Micro-batches are accumulated in the model's format, whatever grad_accum_dtype says.", zero.LifeFold, add},
		{FP32CopyDiscarded, "The reduction works on a copy in another format, and nothing is written back: every rank goes on with its own gradient.", zero.LifeFold, pick},
		{FirstBackwardEpilogue, "With reentrant checkpointing the reduction is finished at the end of the first inner backward: gradients that come later are lost.", zero.LifeLocal, free},
		{ReentrantNoGradInput, "A reentrant segment whose input needs no gradient is not recorded: the parameters inside get none.", zero.LifeLocal, free},
		{MicrostepOverwrite, "A micro-step replaces the accumulated gradient: the last one alone survives.", zero.LifeFold, free},
		{LastMicrobatchLocal, "The last micro-batch is added after the reduction: each rank adds its own alone.", zero.LifeFold, pick},
		{NaNSentinel, "A norm that is not finite becomes -1 for each group, and is squared: it reads 1.0, or 1.414 with two groups, and no step is skipped.", zero.LifeNorm, free},
		{NoSkip, "A step with gradients that are not finite is applied.", zero.LifeUpdate, skipping},
		{RankLocalSkip, "The ranks do not tell each other of an overflow: those that see none in their own share apply the step.", zero.LifeUpdate, skipping},
		{RingOrder, "A ring sums each chunk of a bucket in another order of the ranks, with partial sums in the wire format.", zero.LifeFold, combine},
		{PredivideLowPrecision, "Gradients are divided by the world size in the wire format, before the sum.", zero.LifeCopy, free},
		{ClipAfterUpdateScale, "Gradients are unscaled and clipped after the loss scale was updated, with the next step's scale. It takes a dynamic loss scale.", zero.LifeClip, free},
		{NormLocal, "The norm is that of the rank's own share of the gradient.", zero.LifeNorm, free},
		{ScheduleInBF16, "The cumulative products of the noise schedule are held in bf16: the first timesteps get no noise, and the target stays the noise.", zero.LifeLocal, free},
	}
}

// Names returns the names of all classes.
func Names() []string {
	var all []string
	for _, c := range Classes() {
		all = append(all, c.Name)
	}
	return all
}

// Find returns the class of a name.
func Find(name string) (Class, error) {
	all := Classes()
	k := slices.IndexFunc(all, func(c Class) bool { return c.Name == name })
	if k < 0 {
		return Class{}, fmt.Errorf("unknown fault %q: allowed are %s", name, strings.Join(Names(), ", "))
	}
	return all[k], nil
}
