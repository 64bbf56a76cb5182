package profile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/logged"
)

// TestTraceFile: events of two ranks come out in order from time 0, with named rows.
func TestTraceFile(t *testing.T) {
	var texts []string
	for rank := range 2 {
		tr := NewTrace(rank)
		early := time.Now().Add(-time.Hour)
		tr.Observe(framework.Execution{Op: "before Begin", Start: time.Now()})
		tr.Begin()
		start := time.Now().Add(time.Duration(rank) * time.Second)
		tr.Observe(framework.Execution{Op: "before the step", Start: early})
		tr.Observe(framework.Execution{Op: "Conv2d", Module: "a.b", Pass: framework.PassBackward, Work: framework.Work{MACs: 5, FLOPs: 10}, Start: start, Time: 1500 * time.Nanosecond})
		tr.Collective(logged.Record{Rank: rank, Kind: comm.ReduceScatter, Sig: comm.Signature{Name: "gradient bucket", Bucket: 7}, Bytes: 64,
			Started: start, Began: start.Add(time.Millisecond), Ended: start.Add(3 * time.Millisecond)})
		tr.Phase("step", start)
		text, err := tr.End()
		if err != nil {
			t.Fatal(err)
		}
		tr.Phase("after End", time.Now())
		texts = append(texts, text)
	}
	var b strings.Builder
	if err := WriteTrace(&b, texts); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "before") || strings.Contains(b.String(), "after") {
		t.Errorf("events outside Begin and End: %s", b.String())
	}
	var file struct{ TraceEvents []Event }
	if err := json.Unmarshal([]byte(b.String()), &file); err != nil {
		t.Fatal(err)
	}
	var spans []Event
	names := map[string]int{}
	for _, e := range file.TraceEvents {
		if e.Phase == "X" {
			spans = append(spans, e)
		} else if name, ok := e.Args["name"].(string); ok {
			names[name]++
		}
	}
	if names["rank 0"] != 1 || names["rank 1"] != 1 || names["compute"] != 2 || names["communication"] != 2 {
		t.Errorf("rows %v", names)
	}
	if len(spans) != 6 || spans[0].Start != 0 || spans[0].Rank != 0 || spans[5].Rank != 1 || spans[5].Start < 0.9e6 {
		t.Fatalf("%+v", spans)
	}
	op, bucket := spans[0], spans[2]
	if op.Name != "Conv2d a.b" || op.Cat != "backward" || op.Took != 1.5 || op.Args["FLOPs"] != 10.0 || op.Lane != Compute {
		t.Errorf("operation %+v", op)
	}
	if d := bucket.Start - 1000; bucket.Name != "gradient bucket 7" || bucket.Lane != Communication || bucket.Took != 2000 || d < -1e-6 || d > 1e-6 ||
		bucket.Args["op"] != "reduce_scatter" || bucket.Args["bytes"] != 64.0 || bucket.Args["waited for its turn (us)"] != 1000.0 {
		t.Errorf("collective %+v", bucket)
	}
}

func TestTraceErrors(t *testing.T) {
	var none *Trace
	if none.On() || NewTrace(0).On() {
		t.Error("a trace that has not begun is on")
	}
	var b strings.Builder
	if err := WriteTrace(&b, []string{"{}", "{}"}); err == nil || !strings.Contains(err.Error(), "without events") {
		t.Errorf("no events: %v", err)
	}
	if err := WriteTrace(&b, []string{"{}", "[{"}); err == nil || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("half a list: %v", err)
	}
}
