package main

import (
	"fmt"
	"strings"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/unet"
)

// activationMemory predicts the peak of activations, their gradients and working
// memory of a rank's micro-batch, as configured.
func activationMemory(c *config.Config) (int64, error) {
	mode, err := framework.ParseMode(c.Model.ActivationCheckpointing.Mode)
	if err != nil {
		return 0, err
	}
	return activationsWith(c, mode, c.Model.ActivationCheckpointing.Segments)
}

func activationsWith(c *config.Config, mode framework.Mode, segments int) (int64, error) {
	return unet.ActivationMemory(modelConfig(c), unet.Pass{
		Batch: c.TrainMicroBatchSizePerGPU, Height: c.Data.ImageSize, Width: c.Data.ImageSize,
		Compute: c.ModelDType(), Mode: mode, Segments: segments,
	})
}

// segmentPlan is the prediction for one way of checkpointing.
type segmentPlan struct {
	Segments int   `json:"segments"` // 0: every block, -1: no checkpointing
	Bytes    int64 `json:"bytes"`
}

// activationCurve predicts what checkpointing would leave: without it, and in
// ever more segments, as many as the network can be cut into, up to every block.
func activationCurve(c *config.Config) ([]segmentPlan, error) {
	var curve []segmentPlan
	for _, segments := range []int{-1, 2, 4, 8, 0} {
		mode := framework.ModeReentrant
		if segments < 0 {
			mode = framework.ModeNone
		}
		bytes, err := activationsWith(c, mode, max(0, segments))
		if err != nil && segments > 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		curve = append(curve, segmentPlan{segments, bytes})
	}
	return curve, nil
}

// describeCurve is the curve on a line.
func describeCurve(curve []segmentPlan) string {
	parts := make([]string, len(curve))
	for i, p := range curve {
		name := fmt.Sprintf("%d segments", p.Segments)
		switch p.Segments {
		case -1:
			name = "all kept"
		case 0:
			name = "every block"
		}
		parts[i] = fmt.Sprintf("%s %.2f", name, float64(p.Bytes)/(1<<20))
	}
	return strings.Join(parts, ", ")
}
