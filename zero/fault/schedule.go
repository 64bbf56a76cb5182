package fault

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/unet"
)

// inBF16 is schedule-in-bf16: each cumulative product is rounded to bf16. The largest
// bf16 below 1 is 1 - 1/256, so everything within 1/512 of 1 becomes 1, the level of
// the clean picture.
func inBF16(s *unet.Schedule) (*unet.Schedule, error) {
	products := make([]float64, s.Len())
	for t := range products {
		products[t] = float64(dtype.Round(dtype.BF16, float32(s.AlphaCumprod(t))))
	}
	return unet.NewScheduleFromAlphasCumprod(products)
}
