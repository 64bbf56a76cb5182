package progress

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// colour is the number of a foreground colour, as terminals count them.
type colour int

const (
	plain  colour = 0
	yellow colour = 33
	cyan   colour = 36
	dim    colour = 90
)

// span is text of one colour.
type span struct {
	text string
	colour
}

// row is a line of the display.
type row []span

// clip cuts the row to so many columns: a longer one would wrap.
func (r row) clip(columns int) row {
	var kept row
	for _, s := range r {
		text := []rune(s.text)
		n := min(len(text), max(columns, 0))
		columns -= n
		if n > 0 {
			kept = append(kept, span{string(text[:n]), s.colour})
		}
	}
	return kept
}

func (r row) width() int {
	n := 0
	for _, s := range r {
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

// String is the row with control sequences for its colours, if they are wanted.
func (r row) string(colours bool) string {
	var b strings.Builder
	for _, s := range r {
		if colours && s.colour != plain {
			fmt.Fprintf(&b, "\x1b[%dm%s\x1b[0m", s.colour, s.text)
			continue
		}
		b.WriteString(s.text)
	}
	return b.String()
}

// block is what was drawn last: rows at the bottom of the terminal, the cursor behind
// the last one.
//
// Whatever is drawn is one write that leaves the terminal as it found it: the cursor
// shown, colours reset, no mode set. There is nothing to restore, however the program
// ends.
type block struct {
	text   []string
	widths []int
}

const (
	// clearLine empties the terminal's current line and goes to its beginning.
	clearLine = "\r\x1b[2K"

	// Between the two a terminal that knows them shows nothing half drawn, and no
	// terminal shows the cursor on its way.
	beginDrawing = "\x1b[?2026h\x1b[?25l"
	endDrawing   = "\x1b[?25h\x1b[?2026l"
)

// of makes a block of rows for a terminal.
func (s screen) of(rows []row) block {
	var b block
	for _, r := range rows {
		r = r.clip(s.columns - 1)
		b.text = append(b.text, r.string(s.colours))
		b.widths = append(b.widths, r.width())
	}
	return b
}

// screen is the terminal as it is now.
type screen struct {
	columns, rows int
	colours       bool
}

// up goes from behind the block to its first column. Terminals that have become
// narrower have wrapped its lines.
func (b block) up(s screen) string {
	n := len(b.text) - 1
	for _, w := range b.widths {
		n += max(0, w-1) / max(1, s.columns)
	}
	if n = min(n, max(s.rows-1, 0)); n > 0 {
		return fmt.Sprintf("\r\x1b[%dA", n)
	}
	return "\r"
}

// over draws next in place of b.
func (b block) over(next block, s screen) string {
	if len(b.text) <= 1 && len(next.text) == 1 {
		return clearLine + next.text[0]
	}
	from := ""
	if len(b.text) > 0 {
		from = b.up(s)
	}
	// Text first, then what remains of the old line: nothing is empty in between.
	return beginDrawing + from + strings.Join(next.text, "\x1b[K\n") + "\x1b[J" + endDrawing
}

// above writes a message, whole lines, in front of b.
func (b block) above(message string, s screen) string {
	switch len(b.text) {
	case 0:
		return message
	case 1:
		return clearLine + message + b.text[0]
	}
	return beginDrawing + b.up(s) + "\x1b[J" + message + strings.Join(b.text, "\n") + endDrawing
}
