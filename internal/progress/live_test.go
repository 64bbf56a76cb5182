package progress

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

// emulator is a terminal that knows what this package writes. Lines that leave it at
// the top are kept in history.
type emulator struct {
	t             *testing.T
	columns, rows int
	history       []string
	lines         [][]rune
	x, y          int
	modes         map[string]bool // private modes that are set
	colour        bool            // not the default one
}

func newEmulator(t *testing.T, columns, rows int) *emulator {
	return &emulator{t: t, columns: columns, rows: rows, lines: [][]rune{nil}, modes: map[string]bool{}}
}

var control = regexp.MustCompile(`^\x1b\[(\??)(\d*)([A-Za-z])`)

// Write shows text and checks that the terminal is left as a shell wants it.
func (e *emulator) Write(p []byte) (int, error) {
	for text := string(p); text != ""; {
		if m := control.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[2])
			e.control(m[1]+m[3], n)
			text = text[len(m[0]):]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch {
		case r == '\n':
			e.newline()
		case r == '\r':
			e.x = 0
		case r < ' ':
			e.t.Fatalf("control character %q", r)
		default:
			e.put(r)
		}
	}
	if e.colour || e.modes["25"] || e.modes["2026"] {
		e.t.Fatalf("a write leaves a colour (%v) or a mode (%v) behind", e.colour, e.modes)
	}
	return len(p), nil
}

func (e *emulator) put(r rune) {
	if e.x == e.columns {
		e.newline()
	}
	line := e.lines[e.y]
	for len(line) <= e.x {
		line = append(line, ' ')
	}
	line[e.x] = r
	e.lines[e.y] = line
	e.x++
}

func (e *emulator) newline() {
	e.x = 0
	if e.y++; e.y == len(e.lines) {
		e.lines = append(e.lines, nil)
	}
	e.scroll()
}

func (e *emulator) scroll() {
	for len(e.lines) > e.rows {
		e.history = append(e.history, string(e.lines[0]))
		e.lines = e.lines[1:]
		e.y--
	}
}

func (e *emulator) control(what string, n int) {
	switch what {
	case "A":
		e.y = max(0, e.y-n)
	case "K":
		if n == 2 {
			e.lines[e.y] = nil
		} else {
			e.lines[e.y] = e.lines[e.y][:min(e.x, len(e.lines[e.y]))]
		}
	case "J":
		e.lines[e.y] = e.lines[e.y][:min(e.x, len(e.lines[e.y]))]
		e.lines = e.lines[:e.y+1]
	case "m":
		e.colour = n != 0
	case "?h":
		e.modes[strconv.Itoa(n)] = n != 25
	case "?l":
		e.modes[strconv.Itoa(n)] = n == 25
	default:
		e.t.Fatalf("unknown control sequence %d%s", n, what)
	}
}

// resize wraps the lines as most terminals do; the cursor stays behind its character.
func (e *emulator) resize(columns, rows int) {
	e.columns, e.rows = columns, rows
	var lines [][]rune
	for y, line := range e.lines {
		last := y == e.y
		for len(line) > columns {
			lines = append(lines, line[:columns:columns])
			line = line[columns:]
			if last {
				e.x = max(0, e.x-columns)
			}
		}
		lines = append(lines, slices.Clone(line))
		if last {
			e.y = len(lines) - 1
			lines = lines[:len(lines):len(lines)]
		}
	}
	e.lines = lines
	e.scroll()
}

// text is all that was ever shown and is still there.
func (e *emulator) text() string {
	all := slices.Clone(e.history)
	for _, l := range e.lines {
		all = append(all, strings.TrimRight(string(l), " "))
	}
	return strings.Join(all, "\n")
}

// liveLine is a display on an emulator, its clock and a function that takes steps.
func liveLine(t *testing.T, e *emulator, env map[string]string) (l *Line, steps func(from, to int)) {
	c := &clock{time.Unix(1e9, 0)}
	l = New(Options{Out: e, Total: 400, Now: func() time.Time { return c.now }, Getenv: func(k string) string { return env[k] },
		Terminal: func() (int, int, bool) { return e.columns, e.rows, true }})
	return l, func(from, to int) {
		for s := from; s <= to; s++ {
			c.pass(time.Second)
			err := l.Step(Status{Step: s, Samples: 8, Loss: 2 / float64(s), Norm: float64(s % 5), LR: 1e-3, State: 5 << 20, Activations: 3 << 20})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLiveView(t *testing.T) {
	e := newEmulator(t, 80, 30)
	l, steps := liveLine(t, e, nil)
	var want []string
	say := func(s string) {
		want = append(want, s)
		if err := l.Printf("%s", s); err != nil {
			t.Fatal(err)
		}
	}
	if l.Above("lost") {
		t.Error("a display before the first step")
	}
	say("before")
	steps(1, 50)
	say("first\nof two lines")
	if err := l.HeldOut(50, 0.03); err != nil {
		t.Fatal(err)
	}
	want = append(want, "step 50: held-out loss 0.0300")
	if !l.Above("a notice") {
		t.Error("no display")
	}
	want = append(want, "a notice")
	steps(51, 200)
	for i := range 40 { // more than the terminal has lines
		say(fmt.Sprintf("message %d", i))
	}
	steps(201, 400)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	messages := strings.Join(want, "\n") + "\n"
	text := e.text()
	if !strings.HasPrefix(text, messages) {
		t.Fatalf("messages are not what stands above the view:\n%s", text)
	}
	view := strings.Split(strings.TrimPrefix(text, messages), "\n")
	if len(view) != 1+10+1+1+1+1 || view[len(view)-1] != "" {
		t.Fatalf("%d lines:\n%s", len(view), text)
	}
	for i, re := range map[int]string{
		0:  `^loss \(log\)   ● held out 0\.0300$`,
		1:  `^   1\.5 │⢱$`, // mean of 2/1 and 2/2, on the left at the top
		10: `^ 0\.005 │ .*⣀$`,
		11: `^ +└ step 1 ─+ 400 ┘$`,
		12: `^norm [▁▃▅▆█]{16}   memory 5\.0 MiB   elapsed 6m40s   activations 3\.0 MiB$`,
		13: `^100% █{8}  400/400  loss 0\.0050  norm 0\.00  lr 1\.0e-03  8\.00 samples/s$`,
	} {
		if !regexp.MustCompile(re).MatchString(view[i]) {
			t.Errorf("line %d is %q, want %s", i, view[i], re)
		}
	}
	if marks := strings.Count(strings.Join(view[1:11], ""), "●"); marks != 1 {
		t.Errorf("%d marks of held-out losses", marks)
	}
}

// TestLiveViewIsResized: after each change of size there is one view on the terminal,
// cut to its width, and nothing else of ours but the messages.
func TestLiveViewIsResized(t *testing.T) {
	e := newEmulator(t, 100, 40)
	l, steps := liveLine(t, e, nil)
	if err := l.Printf("a message"); err != nil {
		t.Fatal(err)
	}
	steps(1, 9)
	for i, size := range [][2]int{{70, 40}, {30, 40}, {120, 40}, {121, 50}, {50, 50}, {100, 60}} {
		e.resize(size[0], size[1])
		steps(10*i+10, 10*i+19)
		text := e.text()
		lines := strings.Split(text, "\n")
		views, wantLines := strings.Count(text, "└ step"), 15
		if size[0] < leastColumns {
			views, wantLines = 1-views, 2
		}
		if views != 1 || len(lines) != wantLines || lines[0] != "a message" || strings.Count(text, fmt.Sprintf("%d/400", 10*i+19)) != 1 {
			t.Errorf("%d columns: %d lines\n%s", size[0], len(lines), text)
		}
		for _, line := range lines {
			if len([]rune(line)) >= size[0] {
				t.Errorf("%d columns: line %q", size[0], line)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestColours are there unless NO_COLOR is set.
func TestColours(t *testing.T) {
	for _, env := range []map[string]string{nil, {"NO_COLOR": "1"}} {
		var b bytes.Buffer
		l := New(Options{Out: &b, Total: 9, Getenv: func(k string) string { return env[k] }, Terminal: func() (int, int, bool) { return 80, 40, true }})
		if err := l.Step(Status{Step: 1, Loss: 1}); err != nil {
			t.Fatal(err)
		}
		if got := regexp.MustCompile(`\x1b\[\d*m`).MatchString(b.String()); got == (env != nil) {
			t.Errorf("with %v colours are %v: %q", env, got, b.String())
		}
	}
}

// TestRefresh: without a step the view follows the size of the terminal; the
// goroutine that does so ends with Close.
func TestRefresh(t *testing.T) {
	defer goleak.VerifyNone(t)
	var mu sync.Mutex
	var out bytes.Buffer
	columns := 100
	l := New(Options{Out: lockedWriter{&mu, &out}, Total: 9, Refresh: time.Millisecond, Terminal: func() (int, int, bool) {
		mu.Lock()
		defer mu.Unlock()
		return columns, 40, true
	}})
	if err := l.Step(Status{Step: 1, Loss: 1}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	out.Reset()
	columns = 60
	mu.Unlock()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		n := out.Len()
		mu.Unlock()
		if n > 0 {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatal("the view was not drawn again")
		}
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestChart(t *testing.T) {
	show := func(width, height int, values ...float64) string {
		c := newChart(width, height, values)
		c.draw(values)
		var rows []string
		for i := range height {
			rows = append(rows, c.row(i))
		}
		return strings.Join(rows, "|")
	}
	nan := math.NaN()
	for want, values := range map[string][]float64{
		"⠑⢄  |  ⠑⢄": {7, 6, 5, 4, 3, 2, 1, 0}, // a dot a value
		"    |    ": {nan, nan},
		"⣀⣀⣀⣀|    ": {3, 3, 3}, // no range: in the middle
	} {
		if got := show(4, 2, values...); got != want {
			t.Errorf("%v is %q, want %q", values, got, want)
		}
	}
	if got := show(4, 2, 7, 0); got != "⠑⢄  |  ⠑⢄" {
		t.Errorf("two values are joined as %q", got)
	}
	if c := newChart(4, 2, []float64{1e-3, 1, nan, math.Inf(1)}); !c.log || c.lo != 1e-3 || c.hi != 1 {
		t.Errorf("%+v", c)
	}
	if c := newChart(4, 2, []float64{0, 1}); c.log {
		t.Error("a logarithm of zero")
	}
	if got := spread([]float64{1, 3, nan, 5, 2, 2}, 3); !slices.Equal(got, []float64{2, 5, 2}) {
		t.Errorf("means %v", got)
	}
	if got := sparkline([]float64{9, 0, 7, nan, 3.5}, 4); got != "▁█!▅" {
		t.Errorf("sparkline %q", got)
	}
	for v, want := range map[float64]string{0.024712: "0.0247", 1.27: "1.27", 12345: "1e+04", 0.0000123: "1e-05", 0.005004: "0.005", 0: "0"} {
		if got := label(v); got != want {
			t.Errorf("%v is labelled %q, want %q", v, got, want)
		}
	}
}
