package progress

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Sizes of the live view. A terminal that is smaller shows the bar alone.
const (
	leastColumns, leastRows = 48, 14
	mostChartRows           = 10
	labelWidth              = 7 // of the scale, with the space behind it
)

// point is a value of a step.
type point struct {
	step  int
	value float64
}

// curves is what the live view draws.
type curves struct {
	first      int // step of the first loss
	loss, norm []float64
	heldOut    []point
}

func (c *curves) add(s Status) {
	if len(c.loss) == 0 {
		c.first = s.Step
	}
	c.loss, c.norm = append(c.loss, s.Loss), append(c.norm, s.Norm)
}

// rows lays out the display: the chart above the bar if there is room, else the bar.
func (l *Line) rows(s screen, now time.Time) []row {
	bar := row{{l.barText(s.columns), plain}}
	if s.columns < leastColumns || s.rows < leastRows {
		return []row{bar}
	}
	return append(append(l.chart(s), l.facts(s, now)), bar)
}

// barText is the bar with as much beside it as has room.
func (l *Line) barText(columns int) string {
	// The library's error says that the count exceeds the total; clipped, it cannot.
	_ = l.bar.Set(min(l.status.Step, l.o.Total))
	text := ""
	for omit := range 4 {
		l.bar.Describe(fmt.Sprintf("%d/%d  %s", l.status.Step, l.o.Total, l.describe(l.status, omit)))
		text = strings.Trim(l.bar.String(), "\r ")
		if utf8.RuneCountInString(text) < columns {
			break
		}
	}
	return text
}

// chart is the curve of the loss with its scale, the held-out losses on top.
func (l *Line) chart(s screen) []row {
	width, height := s.columns-1-labelWidth-1, min(s.rows/3, mostChartRows)
	held := make([]float64, len(l.curves.heldOut))
	for i, p := range l.curves.heldOut {
		held[i] = p.value
	}
	c := newChart(width, height, means(l.curves.loss, 2*width), held)
	c.draw(l.curves.loss)
	title := row{{"loss", cyan}}
	if c.log {
		title = append(title, span{" (log)", dim})
	}
	if n := len(held); n > 0 {
		title = append(title, span{fmt.Sprintf("   ● held out %.4f", held[n-1]), yellow})
	}
	rows := []row{title}
	marks := l.marks(c)
	for y := range height {
		scale := ""
		switch y {
		case 0:
			scale = label(c.hi)
		case height - 1:
			scale = label(c.lo)
		}
		r := row{{fmt.Sprintf("%*s │", labelWidth-1, scale), dim}}
		rows = append(rows, append(r, marked(c.row(y), marks[y])...))
	}
	steps := fmt.Sprintf("%*s└ step %d", labelWidth, "", l.curves.first)
	last := fmt.Sprintf("%d ┘", l.status.Step)
	gap := max(1, s.columns-1-utf8.RuneCountInString(steps)-utf8.RuneCountInString(last)-2)
	return append(rows, row{{steps + " " + strings.Repeat("─", gap) + " " + last, dim}})
}

// means is what draw shows of values: the scale is that of the means.
func means(values []float64, n int) []float64 {
	if len(values) < n {
		return values
	}
	return spread(values, n)
}

// marks are the cells of the held-out losses, by row.
func (l *Line) marks(c *chart) []map[int]bool {
	marks := make([]map[int]bool, c.height)
	last := max(1, l.status.Step-l.curves.first)
	for _, p := range l.curves.heldOut {
		if !finite(p.value) || p.step < l.curves.first {
			continue
		}
		x, y := (p.step-l.curves.first)*(c.width-1)/last, c.y(p.value)/4
		if marks[y] == nil {
			marks[y] = map[int]bool{}
		}
		marks[y][min(x, c.width-1)] = true
	}
	return marks
}

// marked puts marks into a line of the curve.
func marked(line string, marks map[int]bool) row {
	var r row
	from := 0
	text := []rune(line)
	for x := range text {
		if marks[x] {
			r = append(r, span{string(text[from:x]), cyan}, span{"●", yellow})
			from = x + 1
		}
	}
	return append(r, span{strings.TrimRight(string(text[from:]), " "), cyan})
}

// facts is the line between the chart and the bar: the norm of the last steps, the
// memory and the time since the start, as far as there is room.
func (l *Line) facts(s screen, now time.Time) row {
	const sparkCells = 24
	var r row
	add := func(name, value string) {
		if r != nil {
			name = "   " + name
		}
		next := append(r, span{name + " ", dim}, span{value, plain})
		if next.width() < s.columns {
			r = next
		}
	}
	add("norm", sparkline(l.curves.norm, min(sparkCells, s.columns/5)))
	if l.status.State > 0 {
		add("memory", mib(l.status.State))
	}
	add("elapsed", duration(now.Sub(l.start)))
	if l.status.Activations > 0 {
		add("activations", mib(l.status.Activations))
	}
	return r
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// refresh starts the goroutine that draws between steps.
func (l *Line) refresh() {
	if l.o.Refresh <= 0 {
		return
	}
	stop := make(chan struct{})
	l.stop, l.stopped = stop, make(chan struct{})
	go func() {
		defer close(l.stopped)
		tick := time.NewTicker(l.o.Refresh)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				l.tick()
			}
		}
	}()
}

// tick draws what is on the terminal again, when its size or the time has changed.
func (l *Line) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	const clock = time.Second
	if len(l.block.text) > 0 && (l.size() != l.screen || now.Sub(l.drawn) >= clock) {
		l.draw(now)
	}
}

// endRefresh ends the goroutine and waits for it. Closing twice is allowed.
func (l *Line) endRefresh() {
	l.mu.Lock()
	stop := l.stop
	l.stop = nil
	l.mu.Unlock()
	if stop != nil {
		close(stop)
		<-l.stopped
	}
}
