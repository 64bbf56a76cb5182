package progress

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// clock is a clock that moves when told to.
type clock struct{ now time.Time }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func noTerminal() (int, int, bool) { return 0, 0, false }

// columns is a terminal of a few lines, which has room for the bar alone.
func columns(n int) func() (int, int, bool) { return func() (int, int, bool) { return n, 5, true } }

// run takes steps of the given duration and returns what was written.
func run(t *testing.T, o Options, from, to int, each time.Duration) string {
	t.Helper()
	var out bytes.Buffer
	c := &clock{time.Unix(1e9, 0)}
	o.Out, o.Now = &out, func() time.Time { return c.now }
	l := New(o)
	for s := from; s <= to; s++ {
		c.pass(each)
		if err := l.Step(Status{Step: s, Samples: 32, Loss: 1 / float64(s), Norm: 0.21, LR: 1.9e-3}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPlainLines(t *testing.T) {
	got := run(t, Options{Total: 10, Every: 4, Terminal: noTerminal}, 1, 10, 62500*time.Microsecond)
	want := `step  1/10  loss 1.0000  norm 0.21  lr 1.9e-03  512 samples/s  eta 1s
step  4/10  loss 0.2500  norm 0.21  lr 1.9e-03  512 samples/s  eta 1s
step  8/10  loss 0.1250  norm 0.21  lr 1.9e-03  512 samples/s  eta 1s
step 10/10  loss 0.1000  norm 0.21  lr 1.9e-03  512 samples/s
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for name, o := range map[string]Options{
		"quiet":               {Total: 10, Every: 1, Terminal: noTerminal, Quiet: true},
		"quiet on a terminal": {Total: 10, Every: 1, Terminal: columns(80), Quiet: true},
		"no lines asked for":  {Total: 10, Terminal: noTerminal},
	} {
		if got := run(t, o, 1, 10, time.Second); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestResumedRunCountsItsOwnSteps(t *testing.T) {
	got := run(t, Options{Total: 100, Every: 50, Terminal: noTerminal}, 91, 95, 2*time.Second)
	if want := "step  91/100  loss 0.0110  norm 0.21  lr 1.9e-03  16.0 samples/s  eta 18s\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// oneLine is a terminal of one line that is drawn over, below lines that stay.
// It knows what this package writes: newline, return, clear the line.
func oneLine(t *testing.T, out string, columns int) (above []string, line string) {
	t.Helper()
	for part := range strings.SplitSeq(out, "\n") {
		at := strings.LastIndex(part, clearLine)
		if at >= 0 {
			part = part[at+len(clearLine):]
		}
		if strings.ContainsAny(part, "\r\x1b") {
			t.Fatalf("control characters in %q", part)
		}
		if n := len([]rune(part)); n >= columns {
			t.Fatalf("%d columns on a terminal of %d: %q", n, columns, part)
		}
		above = append(above, part)
	}
	return above[:len(above)-1], above[len(above)-1]
}

func TestBar(t *testing.T) {
	for width, want := range map[int]string{
		20:  "50% ████░░░░  400/8",
		40:  "50% ████░░░░  400/800  loss 0.0025  eta",
		60:  "50% ████░░░░  400/800  loss 0.0025  eta 1m40s",
		80:  "50% ████░░░░  400/800  loss 0.0025  norm 0.21  128 samples/s  eta 1m40s",
		100: "50% █████░░░░░  400/800  loss 0.0025  norm 0.21  lr 1.9e-03  128 samples/s  eta 1m40s",
		200: "50% ███████████████░░░░░░░░░░░░░░░  400/800  loss 0.0025  norm 0.21  lr 1.9e-03  128 samples/s  eta 1m40s",
	} {
		out := run(t, Options{Total: 800, Terminal: columns(width)}, 1, 400, 250*time.Millisecond)
		above, line := oneLine(t, out, width)
		if len(above) != 1 || above[0] != want || line != "" {
			t.Errorf("%d columns: got %q, then %q, want %q", width, above, line, want)
		}
	}
	whole, _ := oneLine(t, run(t, Options{Total: 5, Terminal: columns(120)}, 1, 5, time.Millisecond), 120)
	if len(whole) != 1 || !strings.Contains(whole[0], "100%") || !strings.Contains(whole[0], "5/5  loss 0.2000") || strings.Contains(whole[0], "░") {
		t.Errorf("at the end: %q", whole)
	}
	// More steps than announced are no reason to fail.
	if over, _ := oneLine(t, run(t, Options{Total: 5, Terminal: columns(120)}, 1, 7, time.Second), 120); !strings.Contains(over[0], "7/5") {
		t.Errorf("beyond the end: %q", over)
	}
}

func TestBarIsNotDrawnTooOften(t *testing.T) {
	out := run(t, Options{Total: 2000, Terminal: columns(120)}, 1, 1000, time.Millisecond)
	if n := strings.Count(out, clearLine); n < 9 || n > 12 {
		t.Errorf("drawn %d times in a second", n)
	}
}

func TestNarrowedTerminal(t *testing.T) {
	var out bytes.Buffer
	width := 150
	c := &clock{time.Unix(1e9, 0)}
	l := New(Options{Out: &out, Total: 10, Now: func() time.Time { return c.now }, Terminal: func() (int, int, bool) { return width, 5, true }})
	for s := 1; s <= 4; s++ {
		c.pass(time.Second)
		out.Reset()
		if s > 2 {
			width = 30
		}
		if err := l.Step(Status{Step: s, Samples: 1, Loss: 1}); err != nil {
			t.Fatal(err)
		}
		oneLine(t, out.String(), width)
	}
}

func TestMessages(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var out bytes.Buffer
		l := New(Options{Out: &out, Total: 10, Terminal: columns(130), Quiet: quiet})
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		check(l.Printf("before %d", 1))
		check(l.Step(Status{Step: 1, Samples: 1, Loss: 0.5}))
		check(l.Printf("between\n"))
		check(l.Warnf("a warning, shorter"))
		if above, line := oneLine(t, out.String(), 130); !quiet && (len(above) != 3 || !strings.Contains(line, "1/10  loss 0.5000")) {
			t.Errorf("before the end: %q, bar %q", above, line)
		}
		check(l.Close())
		check(l.Close())
		check(l.Printf("after"))
		above, line := oneLine(t, out.String(), 130)
		want := []string{"before 1", "between", "a warning, shorter", "10%", "after"}
		if quiet {
			want = want[2:3]
		}
		for i, w := range want {
			if len(above) != len(want) || !strings.Contains(above[i], w) || line != "" {
				t.Fatalf("quiet %v: %q and %q, want %q", quiet, above, line, want)
			}
		}
	}
}

func TestSkippedAndNonFinite(t *testing.T) {
	var out bytes.Buffer
	l := New(Options{Out: &out, Total: 9, Every: 1, Terminal: noTerminal})
	if err := l.Step(Status{Step: 1, Samples: 8, Loss: math.NaN(), Norm: math.Inf(1), LR: 0, Skipped: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "step 1/9  loss NaN  norm +Inf  lr 0.0e+00  skipped"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRate(t *testing.T) {
	var r rate
	if r.samples() != 0 {
		t.Errorf("speed before the first step: %v", r.samples())
	}
	// The first steps are averaged evenly: 10 s and 1 s are 5.5 s.
	r.add(10*time.Second, 4)
	r.add(time.Second, 4)
	if got := r.left(10); got != 55*time.Second {
		t.Errorf("time left %v, want 55s", got)
	}
	// A slow start is forgotten.
	for range 100 {
		r.add(time.Second, 4)
	}
	if got := r.left(100).Seconds(); got < 100 || got > 101 {
		t.Errorf("time left %vs, want 100s", got)
	}
	if got := r.samples(); got < 3.9 || got > 4 {
		t.Errorf("%v samples/s, want 4", got)
	}
	// One slow step moves the estimate by no more than its weight.
	r.add(11*time.Second, 4)
	if got := r.left(1).Seconds(); got < 1.9 || got > 2 {
		t.Errorf("%vs a step after a slow one, want 1.95s", got)
	}
	r.add(-time.Hour, 4) // a clock that was set back
	if r.duration < 0 || r.left(math.MaxInt) < 0 {
		t.Errorf("negative time: %v, %v", r.duration, r.left(math.MaxInt))
	}
}

func TestFormats(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Millisecond: "1s", 59 * time.Second: "59s", 59*time.Second + 1: "1m00s",
		200 * time.Second: "3m20s", 7499 * time.Second: "2h04m", 100 * time.Hour: "4d04h",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v is written as %q, want %q", d, got, want)
		}
	}
	for v, want := range map[float64]string{
		0: "0.00", 0.0042: "4.2e-03", 0.21: "0.21", -0.5: "-0.50", 12.34: "12.3", 512.4: "512", 65536: "65536", 1e7: "1.0e+07",
	} {
		if got := short(v); got != want {
			t.Errorf("%v is written as %q, want %q", v, got, want)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("pipe closed") }

func TestWriteErrorsAreReturned(t *testing.T) {
	for _, terminal := range []func() (int, int, bool){noTerminal, columns(80)} {
		l := New(Options{Out: failing{}, Total: 3, Every: 1, Terminal: terminal})
		for what, err := range map[string]error{
			"Step": l.Step(Status{Step: 1}), "Printf": l.Printf("x"), "Close": l.Close(),
		} {
			if err == nil || !strings.Contains(err.Error(), "pipe closed") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

func TestFilesAreNoTerminals(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, w := range []interface{ Write([]byte) (int, error) }{f, &bytes.Buffer{}} {
		if _, _, ok := terminal(w); ok {
			t.Errorf("%T is a terminal", w)
		}
	}
}

// TestManyGoroutines is for the race detector, and for whole lines.
func TestManyGoroutines(t *testing.T) {
	var out bytes.Buffer
	l := New(Options{Out: &out, Total: 100, Terminal: columns(120)})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 25 {
				_ = l.Step(Status{Step: g*25 + i + 1, Samples: 1})
				_ = l.Printf("message %d.%d", g, i)
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	above, _ := oneLine(t, out.String(), 120)
	seen := map[string]bool{}
	for _, line := range above {
		seen[line] = true
	}
	for g := range 4 {
		for i := range 25 {
			if m := fmt.Sprintf("message %d.%d", g, i); !seen[m] {
				t.Errorf("%q is not on a line of its own", m)
			}
		}
	}
}
