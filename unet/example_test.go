package unet_test

import (
	"fmt"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
)

// A network for grey images, asked for the noise in two of them.
func Example() {
	cfg := unet.DefaultConfig()
	cfg.InChannels, cfg.OutChannels = 1, 1
	cfg.BlockOutChannels = []int{8, 16}
	cfg.DownBlockTypes = []string{unet.DownBlock2D, unet.AttnDownBlock2D}
	cfg.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D}
	cfg.NormNumGroups = 8
	model, err := unet.New(cfg, 42)
	if err != nil {
		fmt.Println(err)
		return
	}

	tape := framework.NewTape()
	err = tape.NoGrad(func() error {
		images := tape.Input([]int{2, 1, 14, 14}, make([]float32, 2*14*14))
		noise, err := model.Forward(tape, images, []int{0, 999})
		if err == nil {
			fmt.Println(noise.Shape())
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [2 1 14 14]
	// <nil>
}

// Everything that is wrong with a configuration is said at once.
func ExampleConfig_Validate() {
	cfg := unet.DefaultConfig()
	cfg.BlockOutChannels = []int{32, 48, 64, 64}
	cfg.Dropout = 1.5
	fmt.Println(cfg.Validate())
	// Output:
	// unet configuration: block_out_channels[1] = 48 is not divisible by norm_num_groups = 32: choose a multiple of 32, or groups that divide every level; dropout = 1.5: must be at least 0 and below 1
}
