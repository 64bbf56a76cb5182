// Package progress shows how far a training is: as a live view with the curve of the
// loss at the bottom of a terminal, as a bar on one line of a small one, or as plain
// lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

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

	// Refresh is how often the display on a terminal follows the clock and the size of
	// the terminal between steps, in a goroutine that ends with Close; 0 is never.
	Refresh time.Duration

	// Terminal is the size of the terminal behind Out and whether there is one. nil
	// asks the system.
	Terminal func() (columns, rows int, ok bool)

	// Getenv reads the environment, where NO_COLOR turns colours off; nil is os.Getenv.
	Getenv func(string) string

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

	// State and Activations are bytes of one rank, 0 where they are not known: of
	// parameters, gradients and optimizer, and the most of activations and their
	// gradients.
	State, Activations int64
}

// Line shows the progress. All methods may be called from any goroutine.
type Line struct {
	o       Options
	mu      sync.Mutex
	bar     *progressbar.ProgressBar // nil when there is no terminal
	block   block                    // on the terminal now
	screen  screen                   // when it was drawn
	drawn   time.Time
	start   time.Time
	last    time.Time // when the last step ended
	rate    rate
	err     error // the first error of a write
	started bool  // a step was shown
	status  Status
	curves  curves

	stop, stopped chan struct{} // of the goroutine that refreshes, nil without one
}

// redraw is the shortest time between two drawings.
const redraw = 100 * time.Millisecond

// New returns a display whose clock starts now.
func New(o Options) *Line {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Terminal == nil {
		o.Terminal = func() (int, int, bool) { return terminal(o.Out) }
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	l := &Line{o: o, start: o.Now(), last: o.Now()}
	if columns, _, ok := o.Terminal(); ok && !o.Quiet && o.Total > 0 {
		l.bar = newBar(o.Total, columns)
		l.refresh()
	}
	return l
}

// terminal asks the system about w.
func terminal(w io.Writer) (columns, rows int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return 0, 0, false
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 1 {
		columns, rows = 80, 1
	}
	return columns, rows, true
}

// size is the terminal as it is now.
func (l *Line) size() screen {
	columns, rows, _ := l.o.Terminal()
	return screen{columns, rows, l.o.Getenv("NO_COLOR") == ""}
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
	l.started, l.status = true, s
	switch {
	case l.o.Quiet:
	case l.bar != nil:
		l.curves.add(s)
		if first || now.Sub(l.drawn) >= redraw || s.Step >= l.o.Total {
			l.draw(now)
		}
	case l.o.Every > 0 && (first || s.Step%l.o.Every == 0 || s.Step >= l.o.Total):
		l.print(fmt.Sprintf("step %*d/%d  %s\n", digits(l.o.Total), s.Step, l.o.Total, l.describe(s, 0)))
	}
	return l.err
}

// HeldOut shows the held-out loss of a step, and keeps it in view on a terminal.
func (l *Line) HeldOut(step int, loss float64) error {
	if err := l.Printf("step %d: held-out loss %.4f", step, loss); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.curves.heldOut = append(l.curves.heldOut, point{step, loss})
	if len(l.block.text) > 0 {
		l.draw(l.o.Now())
	}
	return l.err
}

// draw draws the display.
func (l *Line) draw(now time.Time) {
	s := l.size()
	next := s.of(l.rows(s, now))
	l.print(l.block.over(next, s))
	l.block, l.screen, l.drawn = next, s, now
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

// Printf writes a message on lines of its own, above the display. Quiet drops it.
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
	if len(l.block.text) > 0 {
		text = l.block.above(text, l.size())
	}
	l.print(text)
	return l.err
}

// Above writes a message above the display on a terminal, and reports whether there is
// one. What else writes to that terminal would be drawn over.
func (l *Line) Above(message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.block.text) == 0 {
		return false
	}
	l.print(l.block.above(message+"\n", l.size()))
	return true
}

// Close leaves the display as it stands and moves to the next line. It returns the
// first error of all writes.
func (l *Line) Close() error {
	l.endRefresh()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.block.text) > 0 {
		l.block = block{}
		l.print("\n")
	}
	return l.err
}

func (l *Line) print(text string) {
	if _, err := io.WriteString(l.o.Out, text); err != nil && l.err == nil {
		l.err = fmt.Errorf("show progress: %w", err)
	}
}
