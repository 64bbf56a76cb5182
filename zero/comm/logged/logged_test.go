package logged

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run starts two all-reduces and an all-gather at once on each of two ranks and
// returns their records, by rank.
func run(t *testing.T) [2][]Record {
	var records [2][]Record
	var wg sync.WaitGroup
	for r, c := range local.New(2) {
		w := Wrap(c, func(rec Record) { records[r] = append(records[r], rec) })
		wg.Go(func() {
			defer w.Close()
			if r == 1 {
				time.Sleep(20 * time.Millisecond) // rank 0 waits for it
			}
			ctx, x := context.Background(), []float32{1, 2, float32(r)}
			sums := [2][]float32{make([]float32, 3), make([]float32, 3)}
			all := dtype.Make(dtype.BF16, 2)
			handles := []comm.Handle{
				w.Start(ctx, &comm.Op{Kind: comm.AllReduce, Sig: comm.Signature{Name: "a", Bucket: 4}, Send: dtype.OfFloat32(x), Recv: dtype.OfFloat32(sums[0])}),
				w.Start(ctx, &comm.Op{Kind: comm.AllReduce, Sig: comm.Signature{Name: "b"}, Send: dtype.OfFloat32(x), Recv: dtype.OfFloat32(sums[1])}),
				w.Start(ctx, &comm.Op{Kind: comm.AllGather, Sig: comm.Signature{Name: "c"}, Bounds: []int{0, 1, 2}, Send: dtype.Make(dtype.BF16, 1), Recv: all}),
			}
			for _, h := range handles {
				if err := h.Wait(); err != nil {
					t.Error(err)
				}
			}
			if sums[0][2] != 1 || sums[1][0] != 2 {
				t.Errorf("rank %d: sums %v", r, sums)
			}
		})
	}
	wg.Wait()
	return records
}

func TestEveryCollectiveIsRecordedInItsTurn(t *testing.T) {
	for rank, records := range run(t) {
		if len(records) != 3 {
			t.Fatalf("rank %d: %d records, want 3", rank, len(records))
		}
		names, total := "", time.Duration(0)
		for i, r := range records {
			names += r.Sig.Name
			total += r.Time()
			if want := []int64{12, 12, 4}[i]; r.Bytes != want || r.Rank != rank || r.Size != 2 || r.Err != nil {
				t.Errorf("record %+v, want %d bytes of rank %d of 2", r, want, rank)
			}
			if i > 0 && r.Began.Before(records[i-1].Ended) {
				t.Errorf("rank %d: %q began before %q ended", rank, r.Sig.Name, records[i-1].Sig.Name)
			}
		}
		if names != "abc" {
			t.Errorf("order %q", names)
		}
		// Not three times the wait for the other rank.
		if span := records[2].Ended.Sub(records[0].Started); total > span {
			t.Errorf("rank %d: the collectives took %v of %v", rank, total, span)
		}
	}
}

func TestBandwidths(t *testing.T) {
	at := time.Unix(0, 0)
	r := Record{Size: 4, Kind: comm.ReduceScatter, Bytes: 8e9, Began: at, Ended: at.Add(2 * time.Second)}
	if r.AlgBW() != 4e9 || r.BusBW() != 3e9 {
		t.Errorf("reduce-scatter: %v and %v", r.AlgBW(), r.BusBW())
	}
	r.Kind = comm.AllReduce
	if math.Abs(r.BusBW()-6e9) > 1 {
		t.Errorf("all-reduce: %v", r.BusBW())
	}
	r.Kind, r.Bytes = comm.Barrier, 0
	if r.AlgBW() != 0 {
		t.Errorf("barrier: %v", r.AlgBW())
	}
}

func TestTableSumsUpByOperationPurposeAndSize(t *testing.T) {
	at := time.Unix(0, 0)
	var l Log
	for _, took := range []time.Duration{2, 6} {
		l.Add(Record{Size: 2, Kind: comm.ReduceScatter, Sig: comm.Signature{Name: "gradient bucket"}, Bytes: 8e6, Began: at, Ended: at.Add(took * time.Millisecond)})
	}
	l.Add(Record{Size: 2, Kind: comm.Barrier, Began: at, Ended: at, Err: errors.New("broken")})
	var b strings.Builder
	if err := l.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("table:\n%s", b.String())
	}
	fields := strings.Fields(lines[1])
	want := strings.Fields("reduce_scatter gradient bucket 8000000 2 8.00 4.000 2.000 2.67 1.33")
	if strings.Join(fields, " ") != strings.Join(want, " ") {
		t.Errorf("line %v, want %v", fields, want)
	}
}

func TestCloseGivesUpWhatRuns(t *testing.T) {
	ends := local.New(2)
	defer ends[1].Close()
	w := Wrap(ends[0], func(Record) {})
	h := w.Start(context.Background(), &comm.Op{Kind: comm.Barrier})
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Wait(); err == nil {
		t.Error("a barrier without the other rank succeeded")
	}
}
