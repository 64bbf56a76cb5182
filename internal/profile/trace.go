package profile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero/comm/logged"
)

// Lane is a row of a rank in the trace.
type Lane int

// The lanes.
const (
	Compute       Lane = iota // phases of the step, with the operations of the model inside
	Communication             // collectives
)

var laneNames = [...]string{"compute", "communication"}

// Event is a span of time in the Trace Event Format, which Perfetto and Chrome's
// tracing page read; times are in microseconds.
type Event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"` // X: a complete event, M: a name
	Start float64        `json:"ts"`
	Took  float64        `json:"dur,omitempty"`
	Rank  int            `json:"pid"`
	Lane  Lane           `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// Trace collects the events of one rank between Begin and End. Outside, and on a nil
// Trace, nothing is collected. It is safe for concurrent use.
type Trace struct {
	rank int

	mu     sync.Mutex
	on     bool
	origin time.Time // of which all times are taken, by the monotonic clock
	events []Event
}

// NewTrace returns the trace of a rank.
func NewTrace(rank int) *Trace { return &Trace{rank: rank} }

// Begin starts collecting.
func (t *Trace) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on, t.origin = true, time.Now()
}

// On reports whether events are being collected.
func (t *Trace) On() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.on
}

// rankTrace is what ranks send each other.
type rankTrace struct {
	Origin int64   `json:"origin"` // in nanoseconds since the epoch; events count from it
	Events []Event `json:"events"`
}

// End stops collecting and returns the events as JSON, for WriteTrace in this process
// or another.
func (t *Trace) End() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = false
	text, err := json.Marshal(rankTrace{t.origin.UnixNano(), t.events})
	t.events = nil
	return string(text), err
}

func (t *Trace) add(lane Lane, cat, name string, start time.Time, took time.Duration, args map[string]any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on || start.Before(t.origin) {
		return
	}
	t.events = append(t.events, Event{
		Name: name, Cat: cat, Phase: "X", Rank: t.rank, Lane: lane, Args: args,
		Start: microseconds(start.Sub(t.origin)), Took: microseconds(took),
	})
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Phase adds a part of the step, from start until now.
func (t *Trace) Phase(name string, start time.Time) {
	t.add(Compute, "phase", name, start, time.Since(start), nil)
}

// Observe adds an operation of the model: it is a framework.Observer.
func (t *Trace) Observe(e framework.Execution) {
	name := e.Op
	if e.Module != "" {
		name += " " + e.Module
	}
	args := map[string]any{"module": e.Module}
	if e.Work.FLOPs > 0 {
		args["FLOPs"] = e.Work.FLOPs
	}
	t.add(Compute, e.Pass.String(), name, e.Start, e.Time, args)
}

// Collective adds a collective, from its turn on the wire until this rank's part was
// complete. Those of gradients bear the number of their bucket, those of weights that
// of the piece.
func (t *Trace) Collective(r logged.Record) {
	name := r.Sig.Name
	args := map[string]any{"op": logged.OpName(r.Kind), "bytes": r.Bytes}
	if r.Sig.Bucket >= 0 {
		name = fmt.Sprintf("%s %d", name, r.Sig.Bucket)
		args["bucket"] = r.Sig.Bucket
	}
	if r.Began.After(r.Started) {
		args["waited for its turn (us)"] = microseconds(r.Began.Sub(r.Started))
	}
	t.add(Communication, "collective", name, r.Began, r.Time(), args)
}

// WriteTrace writes one trace of what End returned on each rank. It begins at time 0;
// the clocks of ranks on different machines may differ.
func WriteTrace(w io.Writer, ranks []string) error {
	var all []Event
	var origin int64 // of rank 0
	for rank, text := range ranks {
		var r rankTrace
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return fmt.Errorf("trace of rank %d: %w", rank, err)
		}
		if rank == 0 {
			origin = r.Origin
		}
		for _, e := range r.Events {
			e.Start += microseconds(time.Duration(r.Origin - origin))
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return errors.New("trace without events: nothing was collected")
	}
	slices.SortStableFunc(all, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
	first := all[0].Start
	for i := range all {
		all[i].Start -= first
	}
	file := struct {
		TraceEvents     []Event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}{append(rows(len(ranks)), all...), "ms"}
	return json.NewEncoder(w).Encode(file)
}

// rows names the rows of so many ranks, in their order.
func rows(ranks int) []Event {
	var names []Event
	for r := range ranks {
		name := func(kind string, lane Lane, key string, value any) {
			names = append(names, Event{Name: kind, Phase: "M", Rank: r, Lane: lane, Args: map[string]any{key: value}})
		}
		name("process_name", 0, "name", fmt.Sprintf("rank %d", r))
		name("process_sort_index", 0, "sort_index", r)
		for lane, text := range laneNames {
			name("thread_name", Lane(lane), "name", text)
			name("thread_sort_index", Lane(lane), "sort_index", lane)
		}
	}
	return names
}
