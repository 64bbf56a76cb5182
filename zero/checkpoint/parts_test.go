package checkpoint

import (
	"context"
	"testing"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// TestPartsAreNamed: the checkpoint of a training with other pieces says so, and that of
// the optimizer's own says nothing.
func TestPartsAreNamed(t *testing.T) {
	for _, names := range [][]string{{"ring-order", "norm-local"}, nil} {
		dir, s := t.TempDir(), setup{world: 2, stage: 2, bucket: 64, format: "fp32"}
		err := local.Run(context.Background(), s.world, func(ctx context.Context, c comm.Communicator) error {
			opt, err := zero.Parts{Names: names}.New(ctx, s.params(), s.config(), c, s.rule())
			if err != nil {
				return err
			}
			defer opt.Close()
			return NewSaver(opt, c, Options{Dir: dir}).Save(ctx, StepTag(1))
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := Latest(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Manifest().Parts; len(got) != len(names) || len(got) > 0 && (got[0] != names[0] || got[1] != names[1]) {
			t.Errorf("the checkpoint names %v, want %v", got, names)
		}
		f.Close()
	}
}
