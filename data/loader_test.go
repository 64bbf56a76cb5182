package data

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// numbered is a data set whose picture i holds i, i+½ and −1.
type numbered int

func (n numbered) Len() int             { return int(n) }
func (n numbered) Shape() (c, h, w int) { return 1, 1, 3 }
func (n numbered) Load(i int, dst []float32) (int, error) {
	dst[0], dst[1], dst[2] = float32(i), float32(i)+0.5, -1
	return i % 10, nil
}

// broken fails at one picture.
type broken struct {
	numbered
	at int
}

func (b broken) Load(i int, dst []float32) (int, error) {
	if i == b.at {
		return 0, fmt.Errorf("picture %d is gone", i)
	}
	return b.numbered.Load(i, dst)
}

func newTestLoader(t interface{ Fatal(...any) }, d Dataset, o LoaderOptions) *Loader {
	l, err := NewLoader(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sample is what a loader says about one position.
type sample struct {
	first, second, third float32
	label                int
}

// collect runs so many steps on a world of ranks, each with its own loader, and
// returns the samples by position.
func collect(t interface{ Fatal(...any) }, d Dataset, o LoaderOptions, world, steps int) map[int]sample {
	got := map[int]sample{}
	for r := range world {
		l, b := newTestLoader(t, d, o), Batch{}
		for s := range steps {
			for m := range o.TrainBatch / o.MicroBatch / world {
				if err := l.Batch(&b, s, m*world+r); err != nil {
					t.Fatal(err)
				}
				for j, p := range b.Positions {
					if _, twice := got[p]; twice {
						t.Fatal("position twice: ", p)
					}
					got[p] = sample{b.Pixels[3*j], b.Pixels[3*j+1], b.Pixels[3*j+2], b.Labels[j]}
				}
			}
		}
	}
	return got
}

// TestOrder holds what the order promises, for any sizes: every step has exactly
// its samples, every epoch has each picture at most once (all of them unless the
// last are dropped), and the number of ranks changes nothing.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "world")
		micro := rapid.IntRange(1, 4).Draw(t, "micro-batch")
		accum := rapid.IntRange(1, 3).Draw(t, "accumulation")
		o := LoaderOptions{
			Seed: rapid.Uint64().Draw(t, "seed"), TrainBatch: world * micro * accum, MicroBatch: micro,
			Flip: rapid.Bool().Draw(t, "flip"), DropLast: rapid.Bool().Draw(t, "drop_last"),
		}
		n := numbered(o.TrainBatch + rapid.IntRange(0, 60).Draw(t, "more pictures"))
		steps := 3*int(n)/o.TrainBatch + 1
		got := collect(t, n, o, world, steps)
		if len(got) != steps*o.TrainBatch {
			t.Fatalf("%d samples in %d steps of %d", len(got), steps, o.TrainBatch)
		}
		if alone := collect(t, n, o, 1, steps); !equal(got, alone) {
			t.Fatalf("a world of %d sees other samples than one rank", world)
		}
		epoch := newTestLoader(t, n, o).EpochSamples()
		if want := int(n) - int(n)%o.TrainBatch; o.DropLast && epoch != want || !o.DropLast && epoch != int(n) {
			t.Fatalf("epochs of %d samples from %d pictures", epoch, n)
		}
		for first := 0; first+epoch <= len(got); first += epoch {
			seen := map[int]bool{}
			for p := first; p < first+epoch; p++ {
				i := int(max(got[p].first, got[p].third)) // whichever end is not −1
				if seen[i] || i < 0 || i >= int(n) || got[p].label != i%10 || got[p].second != float32(i)+0.5 {
					t.Fatalf("epoch at %d: position %d has picture %d again, or %+v is not it", first, p, i, got[p])
				}
				seen[i] = true
			}
		}
	})
}

func equal(a, b map[int]sample) bool {
	for p, s := range a {
		if b[p] != s {
			return false
		}
	}
	return len(a) == len(b)
}

// TestUnevenEnd: 10 pictures in steps of 4. Dropping gives two steps an epoch;
// going on puts the last two of one epoch and the first two of the next in one
// step, of the same size as every other.
func TestUnevenEnd(t *testing.T) {
	o := LoaderOptions{Seed: 1, TrainBatch: 4, MicroBatch: 2}
	picture := func(s sample) int { return int(s.first) }
	on := collect(t, numbered(10), o, 2, 5)
	for epoch := range 2 {
		var all []int
		for p := 10 * epoch; p < 10*epoch+10; p++ {
			all = append(all, picture(on[p]))
		}
		slices.Sort(all)
		if !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("epoch %d has pictures %v", epoch, all)
		}
	}
	o.DropLast = true
	dropped := collect(t, numbered(10), o, 2, 40)
	left := map[int]int{}
	for epoch := range 20 {
		seen := map[int]bool{}
		for p := 8 * epoch; p < 8*epoch+8; p++ {
			seen[picture(dropped[p])] = true
		}
		if len(seen) != 8 {
			t.Fatalf("epoch %d has %d different pictures, want 8", epoch, len(seen))
		}
		for i := range 10 {
			if !seen[i] {
				left[i]++
			}
		}
	}
	if len(left) < 8 {
		t.Errorf("over 20 epochs only pictures %v were ever left out", left)
	}
}

// TestOrderNeverChanges: a change of these numbers is another training for every
// seed.
func TestOrderNeverChanges(t *testing.T) {
	got := collect(t, numbered(12), LoaderOptions{Seed: 42, TrainBatch: 4, MicroBatch: 4, Flip: true, DropLast: true}, 1, 6)
	var order, flipped []int
	for p := range 24 {
		if got[p].third != -1 {
			flipped = append(flipped, p)
		}
		order = append(order, int(max(got[p].first, got[p].third)))
	}
	if want := []int{4, 3, 7, 9, 5, 1, 10, 6, 0, 8, 2, 11, 10, 3, 5, 9, 1, 4, 6, 8, 0, 2, 11, 7}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if want := []int{0, 2, 4, 8, 9, 10, 11, 13, 15, 16, 17, 18, 19, 21, 22}; !slices.Equal(flipped, want) {
		t.Errorf("positions %v are mirrored, want %v", flipped, want)
	}
}

func TestFlipIsEven(t *testing.T) {
	o := LoaderOptions{Seed: 5, TrainBatch: 100, MicroBatch: 100, Flip: true}
	flipped := 0
	for _, s := range collect(t, numbered(1000), o, 1, 100) {
		if s.third != -1 {
			flipped++
		}
	}
	if flipped < 4750 || flipped > 5250 { // five standard deviations
		t.Errorf("%d of 10000 samples are mirrored", flipped)
	}
	o.Flip = false
	for p, s := range collect(t, numbered(1000), o, 1, 10) {
		if s.third != -1 {
			t.Fatalf("position %d is mirrored without flip", p)
		}
	}
}

func TestMirror(t *testing.T) {
	for w, want := range map[int][]float32{
		1: {1, 2, 3, 4, 5, 6}, 2: {2, 1, 4, 3, 6, 5}, 3: {3, 2, 1, 6, 5, 4}, 6: {6, 5, 4, 3, 2, 1},
	} {
		x := []float32{1, 2, 3, 4, 5, 6}
		if mirror(x, w); !slices.Equal(x, want) {
			t.Errorf("rows of %d: %v, want %v", w, x, want)
		}
	}
}

func TestLoaderErrors(t *testing.T) {
	for _, c := range []struct {
		n, batch, micro int
		want            []string
	}{
		{3, 4, 2, []string{"train_batch_size = 4", "only 3"}},
		{0, 1, 1, []string{"train_batch_size = 1", "only 0"}},
		{9, 0, 1, []string{"train_batch_size = 0"}},
		{9, 4, 0, []string{"train_micro_batch_size_per_gpu = 0", "train_batch_size = 4"}},
		{9, 4, 3, []string{"train_micro_batch_size_per_gpu = 3", "train_batch_size = 4"}},
	} {
		_, err := NewLoader(numbered(c.n), LoaderOptions{TrainBatch: c.batch, MicroBatch: c.micro})
		wantError(t, err, c.want...)
	}
	l := newTestLoader(t, broken{8, 5}, LoaderOptions{TrainBatch: 8, MicroBatch: 8})
	wantError(t, l.Batch(&Batch{}, 0, 0), "picture 5 is gone")
	for _, at := range [][2]int{{-1, 0}, {0, -1}, {0, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for micro-batch %d of step %d", at[1], at[0])
				}
			}()
			_ = l.Batch(&Batch{}, at[0], at[1])
		}()
	}
}

func TestBatchReusesItsStorage(t *testing.T) {
	l := newTestLoader(t, numbered(1000), LoaderOptions{TrainBatch: 8, MicroBatch: 4, Flip: true})
	var b Batch
	step := 0
	if n := testing.AllocsPerRun(50, func() {
		if err := l.Batch(&b, step, step%2); err != nil {
			t.Fatal(err)
		}
		step++
	}); n > 0 {
		t.Errorf("%v allocations in a batch", n)
	}
	if len(b.Pixels) != 12 || len(b.Labels) != 4 || len(b.Positions) != 4 {
		t.Errorf("sizes %d, %d, %d", len(b.Pixels), len(b.Labels), len(b.Positions))
	}
}

// TestRanksShareADataset is for the race detector.
func TestRanksShareADataset(t *testing.T) {
	d, _ := open(t, Options{Kind: "procedural", ImageSize: 8, Channels: 1})
	o := LoaderOptions{Seed: 3, TrainBatch: 8, MicroBatch: 2, Flip: true}
	want := make([][]float32, 4)
	for g := range want {
		var b Batch
		must(t, newTestLoader(t, d, o).Batch(&b, 2, g))
		want[g] = b.Pixels
	}
	var wg sync.WaitGroup
	for g := range want {
		l := newTestLoader(t, d, o)
		wg.Go(func() {
			var b Batch
			for range 3 {
				if err := l.Batch(&b, 2, g); err != nil {
					t.Error(err)
				}
				if !slices.Equal(b.Pixels, want[g]) {
					t.Errorf("rank %d sees other pixels when others load at the same time", g)
				}
			}
		})
	}
	wg.Wait()
}
