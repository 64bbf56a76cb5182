package main

import (
	"fmt"
	"strings"

	"github.com/zerogap/zerogap/zero"
)

// table writes the predictions for people.
func (s *scenario) table(rows []prediction) string {
	var b strings.Builder
	p := rows[0].plan
	fmt.Fprintf(&b, "%-11s %s trainable parameters, %s\n", "model", thousands(p.Elements), s.model)
	fmt.Fprintf(&b, "%-11s %v\n", "formats", s.cfg.Policy())
	fmt.Fprintf(&b, "%-11s %v\n", "optimizer", s.rule)
	fmt.Fprintf(&b, "%-11s %s, overlap_comm %v\n", "buckets", buckets(p), s.cfg.ZeroOptimization.OverlapComm)
	if s.activations > 0 {
		fmt.Fprintf(&b, "%-11s of a rank, micro-batch of %d: %s\n", "activations", s.micro, mib(s.activations))
		fmt.Fprintf(&b, "%-11s checkpointed, MiB: %s\n", "", describeCurve(s.curve))
	}
	fmt.Fprintf(&b, "%-11s of rank 0, which holds the most; activations are not in it\n\n", "figures")

	unit, name := scale(rows)
	cell := func(bytes int64) string { return fmt.Sprintf("%.2f", float64(bytes)/unit) }
	batch := s.batches > 0
	head := []string{"stage", "ranks", "accum"}
	if batch {
		head = append(head, "batch")
	}
	head = append(head, "params", "grads", "optim", "buffers", "total", "grads", "weights", "total", "collectives")
	lines := [][]string{head}
	for _, r := range rows {
		m, t := r.memory, r.traffic
		line := []string{fmt.Sprint(r.stage), fmt.Sprint(r.world), fmt.Sprint(r.accum)}
		if batch {
			line = append(line, fmt.Sprint(r.batch))
		}
		line = append(line, cell(m.Parameters), cell(m.Gradients+m.Accumulators), cell(m.Master+m.Moments), cell(m.Buckets+m.Workspace), cell(m.Total()),
			cell(t.Gradients.Bytes), cell(t.Weights.Bytes), cell(t.Total().Bytes), thousands(int(t.Total().Collectives)))
		lines = append(lines, line)
	}
	align(&b, lines, len(head)-9, fmt.Sprintf("memory of a rank, %s", name), fmt.Sprintf("sent by a rank in a step, %s", name))
	b.WriteString(`
params: compute copies; grads: local gradients and accumulators; optim: master
weights and moments; buffers: buckets, staging, block sums of the norm. At stage 0
every rank adds all gradients for itself. The local engine runs all ranks in one
process, which holds them all.
`)
	return b.String()
}

// scale picks the unit in which the smallest total is still a number.
func scale(rows []prediction) (unit float64, name string) {
	least := rows[0].memory.Total()
	for _, r := range rows {
		least = min(least, r.memory.Total())
	}
	if least >= 1<<30 {
		return 1 << 30, "GiB"
	}
	return 1 << 20, "MiB"
}

// align writes lines right-aligned in columns, with a title over the five
// columns from first on and one over those after.
func align(b *strings.Builder, lines [][]string, first int, memory, traffic string) {
	width := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, c := range line {
			width[i] = max(width[i], len(c))
		}
	}
	const gap, memoryColumns = 2, 5
	at := func(column int) int { // where a column's cells begin
		n := 0
		for i, w := range width[:column] {
			n += w + gap
			if i+1 == first || i+1 == first+memoryColumns {
				n += gap
			}
		}
		return n
	}
	fmt.Fprintf(b, "%*s%-*s%s\n", at(first), "", at(first+memoryColumns)-at(first), memory, traffic)
	for _, line := range lines {
		var row strings.Builder
		for i, c := range line {
			fmt.Fprintf(&row, "%*s", at(i)+width[i]-row.Len(), c)
		}
		fmt.Fprintln(b, row.String())
	}
}

// planJSON is the output of -json; sizes are bytes.
type planJSON struct {
	Parameters int    `json:"parameters"`
	Tensors    int    `json:"tensors"`
	Optimizer  string `json:"optimizer"`
	DTypes     string `json:"dtypes"`
	// Activations are the peak bytes of a micro-batch, as configured; by segments
	// of checkpointing below (-1: none, 0: every block). Without -config 0.
	Activations int64         `json:"activations,omitempty"`
	Curve       []segmentPlan `json:"activations_with_checkpointing,omitempty"`
	Rows        []rowJSON     `json:"predictions"`
}

type rowJSON struct {
	Stage     int                 `json:"stage"`
	World     int                 `json:"world"`
	Accum     int                 `json:"gradient_accumulation_steps"`
	Batch     int                 `json:"train_batch_size,omitempty"`
	Partition int                 `json:"partition"`
	Buckets   int                 `json:"buckets"`
	Memory    map[string]int64    `json:"memory"`
	Sent      map[string]flowJSON `json:"sent"`
}

type flowJSON struct {
	Bytes       int64 `json:"bytes"`
	Collectives int64 `json:"collectives"`
}

func (s *scenario) document(rows []prediction) planJSON {
	doc := planJSON{
		Parameters: rows[0].plan.Elements, Tensors: len(s.params),
		Optimizer: fmt.Sprint(s.rule), DTypes: s.cfg.Policy().String(), Activations: s.activations, Curve: s.curve,
	}
	for _, r := range rows {
		m, t := r.memory, r.traffic
		doc.Rows = append(doc.Rows, rowJSON{
			Stage: r.stage, World: r.world, Accum: r.accum, Batch: r.batch, Partition: r.plan.Partition, Buckets: len(r.plan.Buckets),
			Memory: map[string]int64{
				"parameters": m.Parameters, "gradients": m.Gradients, "accumulators": m.Accumulators, "master": m.Master,
				"moments": m.Moments, "buckets": m.Buckets, "workspace": m.Workspace, "total": m.Total(),
			},
			Sent: map[string]flowJSON{
				"gradients": flowJSON(t.Gradients), "weights": flowJSON(t.Weights), "norm": flowJSON(t.Norm), "total": flowJSON(t.Total()),
			},
		})
	}
	return doc
}

// trafficLine sets what a rank has sent beside the prediction for a step.
// Weights are gathered in applied steps only.
func trafficLine(sent, step zero.Traffic, tried, applied int) string {
	var parts []string
	for _, k := range []struct {
		name      string
		sent      zero.Flow
		predicted zero.Flow
		steps     int
	}{
		{"gradients", sent.Gradients, step.Gradients, tried}, {"weights", sent.Weights, step.Weights, applied}, {"norm", sent.Norm, step.Norm, tried},
	} {
		parts = append(parts, fmt.Sprintf("%s %s (predicted %s)", k.name, mib(k.sent.Bytes), mib(k.predicted.Bytes*int64(k.steps))))
	}
	return fmt.Sprintf("rank 0 sent %s in %s collectives", strings.Join(parts, ", "), thousands(int(sent.Total().Collectives)))
}
