package progress

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// memory is the time, in steps, over which the speed is averaged.
const memory = 20

// rate is an exponential moving average of the duration and the samples of a
// step. The first steps are averaged evenly, so that it is unbiased from the
// first on.
type rate struct {
	steps    int
	duration float64 // seconds
	size     float64 // samples
}

func (r *rate) add(d time.Duration, samples int) {
	r.steps++
	w := max(1/float64(r.steps), 2.0/(memory+1))
	r.duration += w * (max(d.Seconds(), 0) - r.duration)
	r.size += w * (float64(samples) - r.size)
}

// samples returns samples per second, 0 when not known.
func (r *rate) samples() float64 {
	if r.duration <= 0 {
		return 0
	}
	return r.size / r.duration
}

// left returns how long so many more steps will take.
func (r *rate) left(steps int) time.Duration {
	seconds := float64(steps) * r.duration
	if seconds >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(seconds * float64(time.Second))
}

// duration writes a time as people read it: 42s, 3m20s, 2h05m, 3d04h.
func duration(d time.Duration) string {
	s := int64(math.Ceil(d.Seconds()))
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s%86400/3600)
}

// short writes a number with two digits after the point when it is small, with
// three significant digits otherwise.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6 || a > 0 && a < 0.005:
		return strconv.FormatFloat(v, 'e', 1, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func digits(n int) int { return len(strconv.Itoa(n)) }
