package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Counter shows how much of a piece of work is done: on one line of a terminal that
// goes away at the end. Elsewhere it shows nothing. Its methods may be called from any
// goroutine.
type Counter struct {
	out   io.Writer
	what  string
	total int
	begin time.Time
	mu    sync.Mutex
	live  bool
}

// NewCounter returns a counter of total items; what names them, as in "pictures".
func NewCounter(out io.Writer, what string, total int) *Counter {
	_, _, live := terminal(out)
	return &Counter{out: out, what: what, total: total, begin: time.Now(), live: live && total > 0}
}

// Set shows that so many items are done, and the time that the rest will take.
func (c *Counter) Set(done int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.live {
		return
	}
	text := fmt.Sprintf("%s%d of %d %s", clearLine, done, c.total, c.what)
	if left := c.total - done; done > 0 && left > 0 {
		text += ", " + duration(time.Since(c.begin)/time.Duration(done)*time.Duration(left)) + " left"
	}
	// What cannot be shown on a terminal is no reason to end the work.
	if _, err := io.WriteString(c.out, text); err != nil {
		c.live = false
	}
}

// Close clears the line.
func (c *Counter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live {
		_, _ = io.WriteString(c.out, clearLine)
		c.live = false
	}
}
