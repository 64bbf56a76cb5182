package exchange

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// TestMessagesAreReadAsTheyWereWritten, whatever is in them.
func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := comm.Form{
			Kind:   comm.Kind(rapid.IntRange(0, 3).Draw(t, "kind")),
			Sig:    comm.Signature{Name: rapid.String().Draw(t, "name"), Step: rapid.Int().Draw(t, "step"), Bucket: rapid.IntRange(-1, 1<<40).Draw(t, "bucket"), Layout: rapid.Uint64().Draw(t, "layout")},
			Bounds: rapid.SliceOfN(rapid.IntRange(0, 1<<50), 0, 100).Draw(t, "bounds"),
			Count:  rapid.IntRange(0, 1<<50).Draw(t, "count"),
			Send:   dtype.BF16, Recv: dtype.F32,
		}
		payload := rapid.SliceOfN(rapid.Byte(), 0, inlineBytes).Draw(t, "payload")
		b := appendPayload(appendAnnouncement(nil, 7, f), payload)
		if len(b) > controlBytes {
			t.Fatalf("message of %d bytes", len(b))
		}
		m, err := decode(append(b, make([]byte, controlBytes-len(b))...))
		if err != nil || m.seq != 7 || string(m.payload) != string(payload) {
			t.Fatalf("%+v, %v", m, err)
		}
		if d := m.differ(1, 0, f, hashBounds(f.Bounds)); d != "" {
			t.Fatalf("a form differs from itself: %s", d)
		}
		if len(f.Bounds) > 0 {
			other := f
			other.Bounds = append([]int(nil), f.Bounds...)
			other.Bounds[len(f.Bounds)/2]++
			if d := m.differ(1, 0, other, hashBounds(other.Bounds)); f.Kind != comm.Barrier && !strings.Contains(d, "bounds") {
				t.Fatalf("other bounds: %q", d)
			}
		}
		text := rapid.String().Draw(t, "text")
		if m, err := decode(appendAbortion(nil, -1, true, text)); err != nil || m.text != clip(text, textBytes) || m.by != -1 || !m.lost {
			t.Fatalf("%+v, %v", m, err)
		}
	})
}

// TestForeignMessagesAreErrors: of another build, or cut short.
func TestForeignMessagesAreErrors(t *testing.T) {
	b := appendPayload(appendAnnouncement(nil, 7, comm.Form{Bounds: []int{0, 5}}), []byte("abc"))
	for n := range b {
		if _, err := decode(b[:n]); err == nil {
			t.Errorf("the first %d bytes of %d are a message", n, len(b))
		}
	}
	b[0]++
	if _, err := decode(b); err == nil || !strings.Contains(err.Error(), "same build") {
		t.Errorf("another protocol: %v", err)
	}
	if _, err := decode([]byte{protocol, 99}); err == nil {
		t.Error("an unknown kind is a message")
	}
}
