package bisect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
)

// point is something that two trainings can be compared at. Its numbers do not depend
// on how a training is divided over ranks and buckets.
type point struct {
	life zero.Life
	// part is the global number of the micro-batch for what one rank has of one
	// backward, how many micro-batches have been added for accumulators, and the
	// rank for the rest.
	part int
}

// when orders points as they come about in a step of micro-batches of world ranks.
func (p point) when(world int) int {
	switch p.life {
	case zero.LifeLocal, zero.LifeCopy, zero.LifeWire:
		return p.part / world
	case zero.LifeFold:
		return p.part/world - 1
	}
	return math.MaxInt
}

// String names the point.
func (p point) String() string { return fmt.Sprintf("%v %d", p.life, p.part) }

// pointOf returns where a sight belongs.
func pointOf(s zero.Sight, world int) point {
	switch s.Life {
	case zero.LifeLocal, zero.LifeCopy, zero.LifeWire:
		return point{s.Life, s.Micro*world + s.Rank}
	case zero.LifeFold:
		return point{s.Life, (s.Micro + 1) * world}
	case zero.LifeUpdate:
		return point{s.Life, 0} // the ranks' shares together
	}
	return point{s.Life, s.Rank}
}

// digest is the hashes of one step. A point's hash is the sum of those of its elements,
// so it does not matter in which pieces and in which order they come.
type digest struct {
	world int
	mu    sync.Mutex
	sums  map[point]uint64
}

func newDigest(world int) *digest { return &digest{world: world, sums: map[point]uint64{}} }

// look is a zero.Probe.
func (d *digest) look(s zero.Sight) {
	sum := hash(s.Elements.Lo, s.Values)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sums[pointOf(s, d.world)] += sum
}

// hash sums the hashes of the values of elements from lo on. A zero counts for
// nothing: no gradient is a gradient of zero.
func hash(lo int, values dtype.Buffer) uint64 {
	var sum uint64
	switch values.DType {
	case dtype.F32:
		for i, v := range values.F32 {
			if b := math.Float32bits(v); b != 0 {
				sum += mix(uint64(lo+i), uint64(b))
			}
		}
	case dtype.F64:
		for i, v := range values.F64 {
			sum += mix(uint64(lo+i), math.Float64bits(v))
		}
	default:
		for i, h := range values.U16 {
			if b := math.Float32bits(dtype.ToFloat32(values.DType, h)); b != 0 {
				sum += mix(uint64(lo+i), uint64(b))
			}
		}
	}
	return sum
}

// mix is two rounds of the output function of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(element, bits uint64) uint64 {
	z := element*0x9e3779b97f4a7c15 ^ bits
	for range 2 {
		z += 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
	}
	return z
}

// take returns the sums of the step that ended, and begins the next.
func (d *digest) take() map[point]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	sums := d.sums
	d.sums = map[point]uint64{}
	return sums
}

// firstDifference returns the first point in the life of a step's gradients at which a
// and b differ, and how many were compared. Points that one of them does not have, for
// instance between micro-steps at another world size, are passed over; a local gradient
// that one has and the other has not is a difference.
func firstDifference(a, b map[point]uint64, worldA, worldB int) (first point, found bool, compared int) {
	var differ []point
	for p, x := range a {
		y, both := b[p]
		if !both && p.life != zero.LifeLocal {
			continue
		}
		compared++
		if x != y {
			differ = append(differ, p)
		}
	}
	for p := range b {
		if _, both := a[p]; !both && p.life == zero.LifeLocal {
			differ = append(differ, p)
			compared++
		}
	}
	if len(differ) == 0 {
		return point{}, false, compared
	}
	world := max(worldA, worldB)
	return slices.MinFunc(differ, func(p, q point) int {
		return cmp.Or(p.when(world)-q.when(world), int(p.life)-int(q.life), p.part-q.part)
	}), true, compared
}
