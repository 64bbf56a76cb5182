package logged

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// Log sums up the collectives of a rank by operation, purpose and size. Its methods
// may be called from any goroutine.
type Log struct {
	mu   sync.Mutex
	rows map[key]*row
}

type key struct {
	op, name string
	bytes    int64
}

type row struct {
	count      int
	total      time.Duration
	least      time.Duration
	algBW, bus float64 // sums over the collectives
}

// Add counts a collective that succeeded.
func (l *Log) Add(r Record) {
	if r.Err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rows == nil {
		l.rows = make(map[key]*row)
	}
	k := key{OpName(r.Kind), r.Sig.Name, r.Bytes}
	s := l.rows[k]
	if s == nil {
		s = &row{least: r.Time()}
		l.rows[k] = s
	}
	s.count++
	s.total += r.Time()
	s.least = min(s.least, r.Time())
	s.algBW += r.AlgBW()
	s.bus += r.BusBW()
}

// OpName is what configurations and tables call a collective, for instance
// "reduce_scatter".
func OpName(k comm.Kind) string { return strings.ReplaceAll(k.String(), "-", "_") }

// OpNames lists the names.
func OpNames() []string {
	var names []string
	for k := comm.ReduceScatter; k <= comm.Barrier; k++ {
		names = append(names, OpName(k))
	}
	return names
}

// WriteTable prints a line for each operation, purpose and size: how often, the time
// in all, on average and at least, and the average bandwidths.
func (l *Log) WriteTable(w io.Writer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]key, 0, len(l.rows))
	for k := range l.rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.name, b.name), cmp.Compare(a.bytes, b.bytes))
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "comm op\tfor\tbytes\tcount\ttotal ms\tavg ms\tleast ms\talgbw GB/s\tbusbw GB/s\t")
	for _, k := range keys {
		r := l.rows[k]
		n := float64(r.count)
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.2f\t%.3f\t%.3f\t%.2f\t%.2f\t\n", k.op, k.name, k.bytes, r.count,
			ms(r.total), ms(r.total)/n, ms(r.least), r.algBW/n/1e9, r.bus/n/1e9)
	}
	return t.Flush()
}

// Line describes one collective, for logging as it happens.
func (r Record) Line() string {
	return fmt.Sprintf("comm op: %s | for: %s | step: %d | bucket: %d | time (ms): %.3f | bytes: %d | algbw (GB/s): %.2f | busbw (GB/s): %.2f",
		OpName(r.Kind), r.Sig.Name, r.Sig.Step, r.Sig.Bucket, ms(r.Time()), r.Bytes, r.AlgBW()/1e9, r.BusBW()/1e9)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
