package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// pty returns the two ends of a terminal of the given size: what a user sees, and
// what a program writes to.
func pty(t *testing.T, columns, rows uint16) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	return user, program
}

// onTerminal trains with the standard output on a terminal, calls during with what was
// shown so far until it returns true, and returns all that was shown.
func onTerminal(t *testing.T, columns, rows uint16, during func(shown string) bool, args ...string) (code int, shown string) {
	t.Helper()
	user, program := pty(t, columns, rows)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	read, done := make(chan struct{}), make(chan int, 1)
	go func() {
		defer close(read)
		_, _ = io.Copy(&out, user) // ends with an error when the other end is closed
	}()
	go func() {
		all := append(append([]string{"-config", writeConfig(t, "")}, tiny...), "-out", filepath.Join(t.TempDir(), "out"))
		done <- run(append(all, args...), program, io.Discard)
	}()
	for start := time.Now(); !during(out.String()); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("waited for a minute; shown:\n%s", out.String())
		}
	}
	code = <-done
	after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if *before != *after {
		t.Error("the terminal is not set as before")
	}
	program.Close()
	<-read
	user.Close()
	return code, out.String()
}

// modes of a terminal that are set and unset.
var modes = regexp.MustCompile(`\x1b\[\?(\d+)([hl])`)

// checkTerminal looks at the state that a stream leaves a terminal in.
func checkTerminal(t *testing.T, shown string) {
	t.Helper()
	state := map[string]string{}
	for _, m := range modes.FindAllStringSubmatch(shown, -1) {
		state[m[1]] = m[2]
	}
	if len(state) != 2 || state["25"] != "h" || state["2026"] != "l" {
		t.Errorf("modes at the end: %v", state)
	}
}

// TestLiveViewOnATerminal: the curve is there on a large terminal, the bar alone on a
// small one, colours unless NO_COLOR is set; what is printed afterwards stands below.
func TestLiveViewOnATerminal(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Setenv("TERM", "xterm-256color")
	at := func(string) bool { return true }
	for _, noColor := range []string{"", "1"} {
		t.Setenv("NO_COLOR", noColor)
		code, shown := onTerminal(t, 100, 40, at, "-steps", "30")
		coloured := strings.Contains(shown, "\x1b[36m")
		view, below, _ := strings.Cut(shown, "\r\ntrained      30 steps")
		if code != 0 || !strings.Contains(view, "└ step 1 ─") || !strings.Contains(view, "held out 0.") || !strings.Contains(view, "memory") ||
			coloured == (noColor != "") || below == "" || strings.Contains(below, "\x1b") {
			t.Errorf("NO_COLOR=%q: exit code %d, shown:\n%q", noColor, code, shown)
		}
		checkTerminal(t, shown)
	}
	if _, shown := onTerminal(t, 100, 10, at, "-steps", "5"); strings.Contains(shown, "└ step") || !strings.Contains(shown, "█") {
		t.Errorf("on ten lines:\n%q", shown)
	}
	if code, shown := onTerminal(t, 100, 40, at, "-steps", "5", "-quiet"); code != 0 || shown != "" {
		t.Errorf("a quiet run shows %q", shown)
	}
}

// TestInterruptLeavesTheTerminalAlone: Ctrl-C in the middle of a live view.
func TestInterruptLeavesTheTerminalAlone(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Setenv("TERM", "xterm-256color")
	sent := 0
	code, shown := onTerminal(t, 100, 40, func(shown string) bool {
		if sent == 0 && strings.Count(shown, "└ step") > 2 {
			sent++
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		return sent > 0
	}, "-steps", "100000")
	if code != 0 || !strings.Contains(shown, "as asked") || strings.Count(shown, "train: saving at the end") != 1 {
		t.Errorf("exit code %d, shown:\n%q", code, shown)
	}
	checkTerminal(t, shown)
}
