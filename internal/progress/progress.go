// Package progress shows how far a training is: as a bar that stays on one line
// of a terminal, or as plain lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Options say what to show and where.
type Options struct {
	Out   io.Writer
	Total int // steps of the training
	Every int // steps between plain lines, 0 for none; a bar moves at every step

	// Quiet shows nothing but what Warnf is given.
	Quiet bool

	// Terminal is the width in columns of the terminal behind Out and whether
	// there is one. nil asks the system.
	Terminal func() (columns int, ok bool)

	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Status is what a step shows.
type Status struct {
	Step    int // optimizer steps done, from 1
	Samples int // samples of this step, over all ranks
	Loss    float64
	Norm    float64 // of the gradients, before clipping
	LR      float64
	Skipped bool // the step changed nothing: its gradients were not finite
}

// Line shows the progress. All methods may be called from any goroutine.
type Line struct {
	o       Options
	mu      sync.Mutex
	bar     *progressbar.ProgressBar // nil when there is no terminal
	shown   bool                     // the bar is on the terminal's last line
	text    string                   // the bar as it was drawn last
	drawn   time.Time
	last    time.Time // when the last step ended
	rate    rate
	err     error // the first error of a write
	started bool  // a step was shown
}

// redraw is the shortest time between two drawings of the bar.
const redraw = 100 * time.Millisecond

// New returns a display whose clock starts now.
func New(o Options) *Line {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Terminal == nil {
		o.Terminal = func() (int, bool) { return terminal(o.Out) }
	}
	l := &Line{o: o, last: o.Now()}
	if columns, ok := o.Terminal(); ok && !o.Quiet && o.Total > 0 {
		l.bar = newBar(o.Total, columns)
	}
	return l
}

// terminal asks the system about w.
func terminal(w io.Writer) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 1 {
		columns = 80
	}
	return columns, true
}

// newBar makes the bar, which only draws itself into a string: its own writer
// and clock are not used, so that lines between can be interleaved with it.
func newBar(total, columns int) *progressbar.ProgressBar {
	return progressbar.NewOptions(total,
		progressbar.OptionSetWriter(io.Discard),
		progressbar.OptionSetWidth(min(max(columns-90, 8), 30)),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "█", SaucerPadding: "░", BarStart: "", BarEnd: ""}),
	)
}

// Step shows that a step was done.
func (l *Line) Step(s Status) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	l.rate.add(now.Sub(l.last), s.Samples)
	l.last = now
	first := !l.started
	l.started = true
	switch {
	case l.o.Quiet:
	case l.bar != nil:
		if first || now.Sub(l.drawn) >= redraw || s.Step >= l.o.Total {
			l.render(s, now)
		}
	case l.o.Every > 0 && (first || s.Step%l.o.Every == 0 || s.Step >= l.o.Total):
		l.print(fmt.Sprintf("step %*d/%d  %s\n", digits(l.o.Total), s.Step, l.o.Total, l.describe(s, 0)))
	}
	return l.err
}

// render draws the bar.
func (l *Line) render(s Status, now time.Time) {
	// The library's error says that the count exceeds the total; clipped, it cannot.
	_ = l.bar.Set(min(s.Step, l.o.Total))
	columns, _ := l.o.Terminal()
	for omit := range 4 {
		l.bar.Describe(fmt.Sprintf("%d/%d  %s", s.Step, l.o.Total, l.describe(s, omit)))
		l.text = strings.Trim(l.bar.String(), "\r ")
		if utf8.RuneCountInString(l.text) < columns {
			break
		}
	}
	l.text = clip(l.text, columns-1)
	l.drawn, l.shown = now, true
	l.print(clearLine + l.text)
}

// clearLine empties the terminal's current line and goes to its beginning.
const clearLine = "\r\x1b[2K"

// clip cuts text to so many columns; a longer line would wrap and not be
// cleared.
func clip(text string, columns int) string {
	r := []rune(text)
	return string(r[:min(len(r), max(columns, 1))])
}

// describe is the part of the display that both forms share. For want of room
// it omits the learning rate (1), the norm too (2), and the speed too (3).
func (l *Line) describe(s Status, omit int) string {
	parts := []string{fmt.Sprintf("loss %.4f", s.Loss)}
	if omit < 2 {
		parts = append(parts, "norm "+short(s.Norm))
	}
	if omit < 1 {
		parts = append(parts, fmt.Sprintf("lr %.1e", s.LR))
	}
	if s.Skipped {
		parts = append(parts, "skipped")
	}
	if v := l.rate.samples(); v > 0 && omit < 3 {
		parts = append(parts, short(v)+" samples/s")
	}
	if left := l.o.Total - s.Step; left > 0 {
		parts = append(parts, "eta "+duration(l.rate.left(left)))
	}
	return strings.Join(parts, "  ")
}

// Printf writes a message on lines of its own, above the bar. Quiet drops it.
func (l *Line) Printf(format string, args ...any) error {
	if l.o.Quiet {
		return nil
	}
	return l.Warnf(format, args...)
}

// Warnf is Printf for messages that quiet runs show, too.
func (l *Line) Warnf(format string, args ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSuffix(fmt.Sprintf(format, args...), "\n") + "\n"
	if l.shown {
		text = clearLine + text + l.text
	}
	l.print(text)
	return l.err
}

// Close leaves the bar as it stands and moves to the next line. It returns the
// first error of all writes.
func (l *Line) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		l.shown = false
		l.print("\n")
	}
	return l.err
}

func (l *Line) print(text string) {
	if _, err := io.WriteString(l.o.Out, text); err != nil && l.err == nil {
		l.err = fmt.Errorf("show progress: %w", err)
	}
}
