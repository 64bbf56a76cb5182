package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/zerogap/zerogap/internal/profile"
)

// lanes of a rank in the picture: phases, operations, collectives.
const (
	lanePhase = iota
	laneOps
	laneWire
	lanesOfRank
)

const (
	left, top = 170.0, 40.0
	laneH     = 26.0
	rankH     = lanesOfRank*laneH + 16
)

var colours = map[string]string{"forward": blue, "recompute": purple, "backward": green, "collective": orange}

// timeline draws a trace.
func timeline(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var file struct {
		TraceEvents []profile.Event `json:"traceEvents"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	end, ranks := 0.0, 0
	for _, e := range file.TraceEvents {
		end, ranks = max(end, e.Start+e.Took), max(ranks, e.Rank+1)
	}
	f := &figure{width: 1200, height: top + float64(ranks)*rankH + 30}
	scale := (f.width - left - 20) / end
	f.axis(end, scale, ranks)
	for _, e := range file.TraceEvents {
		if e.Phase == "X" {
			f.event(e, scale)
		}
	}
	return f.String(), nil
}

// axis draws the time, and the names of rows and colours.
func (f *figure) axis(end, scale float64, ranks int) {
	step := 1000.0
	for end/step > 12 {
		step *= 2
	}
	bottom := top + float64(ranks)*rankH
	for at := 0.0; at <= end; at += step {
		x := left + at*scale
		f.line(x, top-6, x, bottom, pale)
		f.text(x, bottom+14, 11, "middle", grey, fmt.Sprintf("%.0f ms", at/1000))
	}
	for r := range ranks {
		y := top + float64(r)*rankH
		f.text(8, y+1.5*laneH+4, 13, "start", black, fmt.Sprintf("rank %d", r))
		for lane, name := range []string{"phase", "operations", "collectives"} {
			f.text(left-10, y+float64(lane)*laneH+laneH/2+4, 12, "end", black, name)
		}
	}
	x := left
	for _, name := range []string{"forward", "recompute", "backward", "collective"} {
		f.rect(x, 10, 12, 12, colours[name], "", "")
		f.text(x+18, 20, 12, "start", black, name)
		x += 110
	}
}

// event draws one span.
func (f *figure) event(e profile.Event, scale float64) {
	lane, fill, stroke := laneOps, colours[e.Cat], ""
	switch e.Cat {
	case "phase":
		lane, fill, stroke = lanePhase, pale, grey
	case "collective":
		lane, stroke = laneWire, "white"
	}
	x, w := left+e.Start*scale, max(e.Took*scale, 0.5)
	y := top + float64(e.Rank)*rankH + float64(lane)*laneH
	title := fmt.Sprintf("%s, %.2f ms", e.Name, e.Took/1000)
	if lane == laneOps {
		title = "" // there are too many
	}
	f.rect(x, y+2, w, laneH-4, fill, stroke, title)
	label := strings.TrimPrefix(e.Name, "gradient bucket ")
	if lane != laneOps && w > 6.2*float64(len(label)) {
		f.text(x+w/2, y+laneH/2+4, 11, "middle", black, label)
	}
}
