package data

import (
	"fmt"
	"math"

	"github.com/zerogap/zerogap/framework"
)

const (
	proceduralTrain   = 60_000
	proceduralHeldOut = 10_000
)

// shapes are the classes of the procedural set, in order of their labels. Each
// is a signed distance: negative inside, in units of the shape's radius, at a
// point in units of the radius from the centre.
var shapes = [...]func(x, y float64) float64{
	disc, ring, square, cross, stripes,
}

func disc(x, y float64) float64 { return math.Hypot(x, y) - 1 }

func ring(x, y float64) float64 { return math.Abs(math.Hypot(x, y)-0.75) - 0.25 }

func square(x, y float64) float64 { return math.Max(math.Abs(x), math.Abs(y)) - 0.85 }

func cross(x, y float64) float64 {
	x, y = math.Abs(x), math.Abs(y)
	arm := math.Min(math.Max(x-0.3, y-1), math.Max(x-1, y-0.3))
	return arm
}

// stripes are three bars, of which the middle one is centred.
func stripes(x, y float64) float64 {
	bar := math.Abs(x-float64(0.8*math.Max(-1, math.Min(1, math.Round(x/0.8))))) - 0.2
	return math.Max(bar, math.Abs(y)-1)
}

// procedural draws picture i when it is loaded, from the random stream of its
// key: i for training, −1−i for held-out pictures, so that the two never meet.
type procedural struct {
	n, channels, size int
	heldOut           bool
}

func openProcedural(o Options) (train, heldOut Dataset) {
	n := o.TrainSamples
	if n == 0 {
		n = proceduralTrain
	}
	return &procedural{n: n, channels: o.Channels, size: o.ImageSize},
		&procedural{n: proceduralHeldOut, channels: o.Channels, size: o.ImageSize, heldOut: true}
}

func (p *procedural) Len() int { return p.n }

func (p *procedural) Shape() (channels, height, width int) { return p.channels, p.size, p.size }

func (p *procedural) Load(i int, dst []float32) (int, error) {
	if i < 0 || i >= p.n {
		panic(fmt.Sprintf("data: picture %d of %d", i, p.n))
	}
	checkDst(dst, p.channels, p.size, p.size)
	key := i
	if p.heldOut {
		key = -1 - i
	}
	s := framework.NewStream(0, 0, key, "shape")
	label := s.Intn(len(shapes))
	distance := shapes[label]
	radius := 0.18 + float64(0.2*s.Float64()) // of the picture's width
	cx, cy := radius+float64((1-2*radius)*s.Float64()), radius+float64((1-2*radius)*s.Float64())
	sin, cos := math.Sincos(float64(0.5*s.Float64()) - 0.25) // a slight turn
	var light [3]float64                                     // of the shape, by channel; −1 is the background
	for c := range p.channels {
		light[c] = -0.2 + float64(1.2*s.Float64())
	}
	if p.channels == 1 {
		light[0] = 0.2 + float64(0.8*s.Float64())
	}
	n, pixel := float64(p.size), radius*float64(p.size)
	for y := range p.size {
		for x := range p.size {
			dx, dy := ((float64(x)+0.5)/n-cx)/radius, ((float64(y)+0.5)/n-cy)/radius
			u, v := float64(dx*cos)+float64(dy*sin), float64(dy*cos)-float64(dx*sin)
			// A border is one pixel wide.
			cover := math.Max(0, math.Min(1, 0.5-float64(distance(u, v)*pixel)))
			for c := range p.channels {
				dst[(c*p.size+y)*p.size+x] = float32(-1 + float64(cover*(light[c]+1)))
			}
		}
	}
	return label, nil
}
