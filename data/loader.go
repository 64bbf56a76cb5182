package data

import (
	"fmt"

	"github.com/zerogap/zerogap/framework"
)

// Batch is one micro-batch. Its storage is reused from one call to the next;
// whoever keeps values longer copies them. The zero value is ready to use.
type Batch struct {
	Pixels []float32 // [B,C,H,W], in [−1, 1]
	Labels []int     // [B], −1 where there are no classes

	// Positions are the places of the samples in the whole training, [B]: the
	// sample at position p is the p-th that the training sees, from 0. They key
	// everything random about a sample: noise, timestep, dropout.
	Positions []int
}

// LoaderOptions are the order and the sizes of batches.
type LoaderOptions struct {
	Seed       uint64 // keys the order and the flips
	TrainBatch int    // samples of one optimizer step over all ranks
	MicroBatch int    // samples of one forward pass of one rank; divides TrainBatch
	Flip       bool   // mirror each sample left to right with probability ½

	// DropLast leaves out the samples at the end of an epoch that do not fill a
	// step. Each epoch leaves out others. Without it a step that reaches the
	// end of an epoch goes on with the beginning of the next. Either way every
	// step has exactly TrainBatch samples, so that the mean of its micro-batch
	// means is the mean of its samples, and all ranks take the same steps.
	DropLast bool
}

// Loader hands out the micro-batches of a training. Sample p of the training
// (p = 0, 1, 2, …) is entry p mod N′ of the shuffled order of epoch ⌊p/N′⌋. N′ is
// the number of pictures, with DropLast rounded down to whole steps. The order
// is a function of seed and epoch.
//
// A Loader serves one goroutine; ranks have one each over a shared Dataset.
type Loader struct {
	ds       Dataset
	o        LoaderOptions
	perEpoch int   // N′
	epoch    int   // whose order is cached
	order    []int // nil before the first batch
}

// NewLoader returns a loader over ds. Errors name the numbers that do not fit.
func NewLoader(ds Dataset, o LoaderOptions) (*Loader, error) {
	n := ds.Len()
	switch {
	case o.TrainBatch < 1:
		return nil, fmt.Errorf("train_batch_size = %d must be at least 1", o.TrainBatch)
	case o.MicroBatch < 1 || o.TrainBatch%o.MicroBatch != 0:
		return nil, fmt.Errorf("train_micro_batch_size_per_gpu = %d must be a positive divisor of train_batch_size = %d", o.MicroBatch, o.TrainBatch)
	case n < o.TrainBatch:
		return nil, fmt.Errorf("train_batch_size = %d, but there are only %d training pictures: lower train_batch_size, or add pictures", o.TrainBatch, n)
	}
	perEpoch := n
	if o.DropLast {
		perEpoch -= n % o.TrainBatch
	}
	return &Loader{ds: ds, o: o, perEpoch: perEpoch}, nil
}

// EpochSamples returns the number of samples of one epoch.
func (l *Loader) EpochSamples() int { return l.perEpoch }

// Batch fills b with micro-batch g of optimizer step step, both from 0: the
// positions step·TrainBatch + g·MicroBatch + j. Micro-step m of rank r of a
// world of W is micro-batch g = m·W + r, so a step has the same samples at any
// world size. Batch panics when step or g does not exist.
func (l *Loader) Batch(b *Batch, step, g int) error {
	if micros := l.o.TrainBatch / l.o.MicroBatch; step < 0 || g < 0 || g >= micros {
		panic(fmt.Sprintf("data: micro-batch %d of step %d, but a step has %d", g, step, micros))
	}
	c, h, w := l.ds.Shape()
	n, size := l.o.MicroBatch, c*h*w
	b.Pixels, b.Labels, b.Positions = resize(b.Pixels, n*size), resize(b.Labels, n), resize(b.Positions, n)
	for j := range n {
		p := step*l.o.TrainBatch + g*n + j
		pixels := b.Pixels[j*size : (j+1)*size]
		label, err := l.ds.Load(l.index(p), pixels)
		if err != nil {
			return err
		}
		if l.o.Flip && framework.NewStream(l.o.Seed, step, p, "flip").Uint64()>>63 == 1 {
			mirror(pixels, w)
		}
		b.Labels[j], b.Positions[j] = label, p
	}
	return nil
}

// index returns the picture at a position. Positions ascend in a training, so
// one cached order is enough.
func (l *Loader) index(position int) int {
	if epoch := position / l.perEpoch; l.order == nil || epoch != l.epoch {
		l.order = framework.NewStream(l.o.Seed, epoch, 0, "order").Perm(l.ds.Len())
		l.epoch = epoch
	}
	return l.order[position%l.perEpoch]
}

// mirror reverses every row of a picture.
func mirror(pixels []float32, width int) {
	for ; len(pixels) > 0; pixels = pixels[width:] {
		row := pixels[:width]
		for i, j := 0, width-1; i < j; i, j = i+1, j-1 {
			row[i], row[j] = row[j], row[i]
		}
	}
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
