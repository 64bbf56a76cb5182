package comm

import (
	"fmt"
	"slices"

	"github.com/zerogap/zerogap/dtype"
)

// Form is what the ranks of a collective compare: all of it but the contents of the
// buffers. Engines that share no memory send it to each other.
type Form struct {
	Kind   Kind
	Sig    Signature
	Bounds []int       // of ReduceScatter and AllGather
	Count  int         // elements of an AllReduce
	Send   dtype.DType // format of Send
	Recv   dtype.DType // format of Recv
}

// Form returns the operation's form. It shares Bounds.
func (op *Op) Form() Form {
	f := Form{Kind: op.Kind, Sig: op.Sig, Send: op.Send.DType, Recv: op.Recv.DType}
	switch op.Kind {
	case AllReduce:
		f.Count = op.Send.Len()
	case ReduceScatter, AllGather:
		f.Bounds = op.Bounds
	}
	return f
}

// String names the collective in an error, for instance
// `reduce-scatter "gradient bucket" of step 3, bucket 7`.
func (op *Op) String() string { return op.Form().String() }

// String is that of Op.
func (f Form) String() string {
	s := fmt.Sprintf("%s %q", f.Kind, f.Sig.Name)
	if f.Kind == Barrier && f.Sig.Name == "" {
		s = f.Kind.String()
	}
	if f.Sig.Step != 0 {
		s += fmt.Sprintf(" of step %d", f.Sig.Step)
	}
	if f.Sig.Bucket >= 0 && f.Kind != Barrier {
		s += fmt.Sprintf(", bucket %d", f.Sig.Bucket)
	}
	return s
}

// Differ compares the operations of two ranks. It returns the first difference in
// words, "" when they are the same collective: same kind, signature, bounds,
// counts and formats.
func Differ(rankA int, a *Op, rankB int, b *Op) string {
	return DifferentForms(rankA, a.Form(), rankB, b.Form())
}

// DifferentForms is Differ for the forms of two operations.
func DifferentForms(rankA int, a Form, rankB int, b Form) string {
	sides := func(what string, x, y any) string {
		return fmt.Sprintf("%s: rank %d has %v, rank %d has %v", what, rankA, x, rankB, y)
	}
	switch {
	case a.Kind != b.Kind || a.Sig.Name != b.Sig.Name || a.Sig.Step != b.Sig.Step || a.Sig.Bucket != b.Sig.Bucket:
		return sides("operation", a, b)
	case a.Sig.Layout != b.Sig.Layout:
		return sides("layout hash", fmt.Sprintf("%016x", a.Sig.Layout), fmt.Sprintf("%016x", b.Sig.Layout))
	case a.Kind == Barrier:
		return ""
	case a.Send != b.Send:
		return sides("sent format", a.Send, b.Send)
	case a.Recv != b.Recv:
		return sides("received format", a.Recv, b.Recv)
	case a.Count != b.Count:
		return sides("element count", a.Count, b.Count)
	case !slices.Equal(a.Bounds, b.Bounds):
		return sides("bounds", a.Bounds, b.Bounds)
	}
	return ""
}
