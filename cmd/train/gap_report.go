package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zerogap/zerogap/internal/picture"
)

// report says what came out: a summary on the terminal, pictures and one HTML file.
func (g *gap) report() error {
	rows := g.rows()
	compared, differ := g.judgeExact()
	var b strings.Builder
	fmt.Fprintf(&b, "\nthe correct engine: %d losses, norms and hashes of weights in %d ways to run, %d differ\n\nwith the faults:\n", compared, len(g.exact), differ)
	good := 0
	for _, r := range rows {
		fmt.Fprintf(&b, "%-15s %s\n%-15s %s\n", r.verdict(), r.what, "", r.measured)
		if r.reproduced {
			good++
		}
	}
	fmt.Fprintf(&b, "%d of %d rows of the report are reproduced\n\n", good, len(rows))
	figures, err := g.draw()
	if err != nil {
		return err
	}
	path := filepath.Join(g.o.out, "report.html")
	p, err := g.page(rows, figures)
	if err != nil {
		return err
	}
	if err := p.write(path); err != nil {
		return err
	}
	fmt.Fprintf(&b, "report          %s, with pictures in it; curves in csv, configurations in configs\n", path)
	_, err = fmt.Fprint(g.stdout, b.String())
	return err
}

// draw makes the pictures: first the report's own figure, the five curves.
func (g *gap) draw() ([]figure, error) {
	five := []string{vGood, vLarger, vMost, vSixtieth, vSmallest}
	rest := []string{vGood, vSingle, vStage1, vNon, vPingpong}
	var all []figure
	for _, f := range []struct {
		file, title, axis, caption string
		names                      []string
		of                         func(series) []float64
	}{
		{"loss.png", "Loss, with the reported faults", "loss", "Loss of the report's five runs, raw and smoothed, first seed. A curve ends where it is not finite.", five, func(c series) []float64 { return c.loss }},
		{"norm.png", "Gradient norm, with the reported faults", "gradient norm", "Norm of the gradient before clipping, the same runs.", five, func(c series) []float64 { return c.norm }},
		{"causes.png", "Loss without overlap, in bf16, without reentrant checkpointing", "loss", "Loss of the other runs beside the good one.", rest, func(c series) []float64 { return c.loss }},
	} {
		var curves []picture.Curve
		for _, name := range f.names {
			curves = append(curves, g.curve(name, f.of))
		}
		path := filepath.Join(g.o.out, f.file)
		if err := picture.Panels(path, picture.Panel{Title: f.title, X: "step", Y: f.axis, Curves: curves}); err != nil {
			return nil, err
		}
		fig, err := inline(path, f.caption)
		if err != nil {
			return nil, err
		}
		all = append(all, fig)
	}
	return all, nil
}

// curve is the first seed of a variant.
func (g *gap) curve(name string, of func(series) []float64) picture.Curve {
	c := picture.Curve{Name: g.titleOf(name)}
	for s, y := range of(g.runs[name][0]) {
		c.X, c.Y = append(c.X, float64(s+1)), append(c.Y, y)
	}
	return c
}

func (g *gap) titleOf(name string) string {
	for _, v := range wrongVariants() {
		if v.name == name {
			return v.title
		}
	}
	panic("train: no variant " + name)
}

// page is the report for others.
func (g *gap) page(rows []row, figures []figure) (page, error) {
	compared, differ := g.judgeExact()
	p := page{
		Title: "A convergence gap, and what is behind it",
		Lead: []string{
			fmt.Sprintf("One training of a diffusion model of %s parameters on %d ranks, run in the ways of a public report in which convergence depended on the bucket size: with an engine in which no knob changes a bit, and with the faults that were found behind the report, each as a piece that can be chosen.", thousands(g.elements), g.base.Comm.World),
			fmt.Sprintf("Every row of the report is held against what came out, with fixed bounds: a run is worse when its loss over the last fifth of the steps is %g times the good run's in every seed, poor at %g, several times higher at %g; alike within %g. What does not come out is shown as such.", worse, poor, several, alike),
			"Made by: " + g.command + fmt.Sprintf(", in %v.", time.Since(g.began).Round(time.Second)),
		},
	}
	p.Parts = append(p.Parts, verdicts(rows), part{Title: "Curves", Figures: figures}, g.effects(), g.normTable(), g.matrix(compared, differ))
	configs, err := g.configs()
	p.Parts = append(p.Parts, configs)
	return p, err
}

func verdicts(rows []row) part {
	t := part{Title: "The report, row by row, with the faults", Head: []string{"reported", "measured", "verdict"}}
	for _, r := range rows {
		t.Rows = append(t.Rows, append(cells(r.what, r.measured), yes(r.reproduced, r.verdict())))
	}
	return t
}

// effects lists every variant with its spread over seeds.
func (g *gap) effects() part {
	t := part{
		Title: "Sizes of the effects", Text: g.causes(),
		Head: []string{"run", "faults", "bucket, elements", "loss at the end", "times the good run's", "first step not finite"},
	}
	for _, v := range wrongVariants() {
		first := "none"
		if lo, hi, n := g.firstBad(v.name); n > 0 {
			first = fmt.Sprintf("%d to %d, in %d of %d seeds", lo, hi, n, g.seeds)
		}
		names := strings.Join(v.faults, ", ")
		if names == "" {
			names = "none"
		}
		t.Rows = append(t.Rows, cells(v.title, names, thousands(max(1, int(v.bucket*float64(g.elements)))), over(g.tails(v.name)).String(), g.atEnd(v.name, vGood).String(), first))
	}
	return t
}

func (g *gap) normTable() part {
	_, agree := g.judgeNorms()
	verdict := "It is not so that the first differs from all others and these agree bit for bit."
	if agree {
		verdict = "The first differs from all others, and these agree bit for bit."
	}
	t := part{Title: "Gradient norms with a learning rate of 0", Text: []string{"Four runs on the same data, whose weights never change; the first of them has no faults. " + verdict}, Head: []string{"run"}}
	for s := range normSteps {
		t.Head = append(t.Head, fmt.Sprintf("step %d", s+1))
	}
	for _, n := range g.norms {
		row := cells(n.title)
		for _, x := range n.norms {
			row = append(row, cell{Text: fmt.Sprintf("%.9f", x)})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// matrix shows the correct side.
func (g *gap) matrix(compared, differ int) part {
	t := part{
		Title: "The correct engine",
		Text:  []string{fmt.Sprintf("%d losses, gradient norms and hashes of the weights were compared bit for bit with those of the first way to run: %d differ. (Accumulation in bf16 is another arithmetic, and in no row.)", compared, differ)},
		Head:  []string{"way to run", "steps", "loss at the last", "norm at the last", "hash of the weights", "values that differ"},
	}
	for _, r := range g.exact {
		n, last := r.differs(g.exact[0]), len(r.loss)-1
		t.Rows = append(t.Rows, append(cells(r.title, fmt.Sprint(last+1), fmt.Sprintf("%.9f", r.loss[last]), fmt.Sprintf("%.9f", r.norm[last]), fmt.Sprintf("%016x", r.weights)), yes(n == 0, fmt.Sprint(n))))
	}
	return t
}

// configs folds away the configuration of each run.
func (g *gap) configs() (part, error) {
	p := part{Title: "Configurations", Text: []string{"Each can be trained again with: train -config FILE"}}
	for _, v := range wrongVariants() {
		name := v.name + "-seed0.toml"
		text, err := os.ReadFile(filepath.Join(g.o.out, "configs", name))
		if err != nil {
			return p, err
		}
		p.Folded = append(p.Folded, folded{v.title, string(text)})
	}
	return p, nil
}
