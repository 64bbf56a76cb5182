package main

import (
	"context"
	"io"
	"math"
	"testing"

	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// TestDiffusersComputesTheSame: a pipeline that train export has written, in the hands
// of diffusers, gives the output and the pictures that it gives here.
func TestDiffusersComputesTheSame(t *testing.T) {
	const dir = "../../testdata/interchange/"
	flags := networkFlags{model: dir + "pipeline", sets: repeated{"diffusion.sampler=ddim", "diffusion.sample_steps=10"}}
	net, err := flags.open(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	file, err := safetensors.Open(dir + "expected.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	values := func(name string) []float32 {
		x, err := file.Float32(name)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	near := func(what string, got, want []float32) {
		t.Helper()
		for i := range want {
			if math.Abs(float64(got[i])-float64(want[i])) > 1e-4 {
				t.Fatalf("%s: element %d is %v, diffusers has %v", what, i, got[i], want[i])
			}
		}
	}
	x := values("x")
	err = local.Run(context.Background(), 1, func(ctx context.Context, c comm.Communicator) error {
		v := net.viewer(c, 3, 8, 8)
		out, err := v.predict([]int{3, 3, 8, 8}, x, []int{0, 421, 999}, nil)
		if err != nil {
			return err
		}
		near("output", out, values("output"))
		noise := func(dst []float32, image, _ int) { copy(dst, x[image*3*64:]) }
		pictures, err := net.diffusion.Sampler.Sample(ctx, v.denoiser(3), noise, 0, 3, 3*64)
		if err == nil {
			near("ten steps of DDIM", pictures, values("ddim10"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
