package config

import "fmt"

const (
	keyBatch = "train_batch_size"
	keyMicro = "train_micro_batch_size_per_gpu"
	keyAccum = "gradient_accumulation_steps"
	keyWorld = "comm.world"
)

// batch finds the missing ones of batch = micro-batch × accumulation × world.
// Two of the three, or one of batch and micro-batch, are enough.
func (l *loader) batch() {
	c := l.cfg
	c.WorldOrigin = l.origin(keyWorld)
	if !l.sound(keyBatch, keyMicro, keyAccum, keyWorld) {
		return
	}
	t, m, a, w := c.TrainBatchSize, c.TrainMicroBatchSizePerGPU, c.GradientAccumulationSteps, c.Comm.World
	switch {
	case t > 0 && m > 0 && a > 0:
		if product(m, a, w) != float64(t) {
			l.badBatch("%s = %d is not %s %d × %s %d × world %d = %.0f", keyBatch, t, keyMicro, m, keyAccum, a, w, product(m, a, w))
		}
	case t > 0 && m > 0:
		a = l.divide(t, keyMicro, m, w)
	case t > 0 && a > 0:
		m = l.divide(t, keyAccum, a, w)
	case t > 0:
		a, m = 1, l.divide(t, keyAccum, 1, w)
	case m > 0:
		a = max(a, 1)
		if product(m, a, w) > maxWhole {
			l.badBatch("%s %d × %s %d × world %d is too large", keyMicro, m, keyAccum, a, w)
		}
		t = m * a * w
	default:
		l.errs = append(l.errs, fmt.Errorf("%s: %s: give it or %s, or both: the batch size has no default", l.source(), keyBatch, keyMicro))
	}
	c.TrainBatchSize, c.TrainMicroBatchSizePerGPU, c.GradientAccumulationSteps = t, m, a
}

// product multiplies in float64, where it cannot overflow.
func product(a, b, c int) float64 { return float64(a) * float64(b) * float64(c) }

// divide returns t / (by·world), which must be whole.
func (l *loader) divide(t int, key string, by, world int) int {
	p := product(by, world, 1)
	if p > float64(t) || t%(by*world) != 0 {
		l.badBatch("%s = %d is not a multiple of %s %d × world %d = %.0f", keyBatch, t, key, by, world, p)
		return 0
	}
	return t / (by * world)
}

func (l *loader) badBatch(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf("%s: %s; world comes from %s", l.source(), fmt.Sprintf(format, args...), l.cfg.WorldOrigin))
}

// origin says in words where the value of a key came from.
func (l *loader) origin(path string) string {
	e, given := l.entries[path]
	switch {
	case path == keyWorld && l.world.Size > 0:
		return l.world.Origin
	case !given:
		return "the default of " + path
	case e.where == settingSource:
		return path + " on the command line"
	}
	return fmt.Sprintf("%s in %s", e.written, e.where)
}

// launched puts the number of ranks that are there in place of the configured one.
func (l *loader) launched() {
	if l.world.Size == 0 {
		return
	}
	if e, given := l.entries[keyWorld]; given && e.where == settingSource && e.value != int64(l.world.Size) {
		l.failValue(keyWorld, "%s has started %d: leave it out", l.world.Origin, l.world.Size)
		return
	}
	l.entries[keyWorld] = entry{value: int64(l.world.Size), written: keyWorld, where: l.world.Origin}
}
