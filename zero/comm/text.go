package comm

import (
	"context"

	"github.com/zerogap/zerogap/dtype"
)

// Texts returns every rank's text, in rank order. It is collective; name says in
// errors what is exchanged.
func Texts(ctx context.Context, c Communicator, name, text string) ([]string, error) {
	world, rank := c.Size(), c.Rank()
	lengths, bounds := dtype.Make(dtype.F64, world), make([]int, world+1)
	for r := range bounds {
		bounds[r] = r
	}
	mine := lengths.Slice(rank, rank+1)
	mine.F64[0] = float64(len(text))
	sig := Signature{Name: name + ", lengths", Bucket: -1}
	if err := Do(ctx, c, &Op{Kind: AllGather, Sig: sig, Bounds: bounds, Send: mine, Recv: lengths}); err != nil {
		return nil, err
	}
	for r, n := range lengths.F64 {
		bounds[r+1] = bounds[r] + int(n)
	}
	// A byte travels as the bits of one 16-bit element: an all-gather moves bits.
	all := dtype.Make(dtype.BF16, bounds[world])
	mine = all.Slice(bounds[rank], bounds[rank+1])
	for i := range len(text) {
		mine.U16[i] = uint16(text[i])
	}
	sig.Name = name
	if err := Do(ctx, c, &Op{Kind: AllGather, Sig: sig, Bounds: bounds, Send: mine, Recv: all}); err != nil {
		return nil, err
	}
	texts := make([]string, world)
	for r := range texts {
		part := all.U16[bounds[r]:bounds[r+1]]
		b := make([]byte, len(part))
		for i, v := range part {
			b[i] = byte(v)
		}
		texts[r] = string(b)
	}
	return texts, nil
}
