package exchange

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"unicode/utf8"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Sizes of control messages, chosen to go out in one piece with the usual
// transports.
const (
	controlBytes = 4096 // the longest message
	inlineBytes  = 2048 // the longest data that travels inside an announcement
	listedBounds = 65   // longer lists of bounds travel as their hash
	nameBytes    = 96
	textBytes    = controlBytes - 64
)

// kind is what a control message is.
type kind uint8

const (
	announcement kind = 1 + iota // of a collective: its number, its form and perhaps data
	abortion                     // the sender's communicator is broken, and why
	goodbye                      // the sender has closed its communicator
)

// protocol is the first byte of every message, so that builds with another one are
// told apart.
const protocol = 1

// message is a control message, decoded.
type message struct {
	kind    kind
	seq     uint64    // of an announcement
	form    comm.Form // Bounds are nil when they are too many
	hash    uint64    // of the bounds
	payload []byte    // a view of the message
	by      int       // the rank that an abortion names as its cause, or nobody
	lost    bool      // an abortion is because of ErrLost
	text    string    // of an abortion
}

// appendAnnouncement encodes the collective without data.
func appendAnnouncement(b []byte, seq uint64, f comm.Form) []byte {
	b = append(b, protocol, byte(announcement))
	le := binary.LittleEndian
	b = le.AppendUint64(b, seq)
	b = append(b, byte(f.Kind), byte(f.Send), byte(f.Recv))
	b = le.AppendUint64(b, uint64(f.Sig.Step))
	b = le.AppendUint64(b, uint64(f.Sig.Bucket))
	b = le.AppendUint64(b, f.Sig.Layout)
	b = le.AppendUint64(b, uint64(f.Count))
	b = le.AppendUint64(b, hashBounds(f.Bounds))
	name := clip(f.Sig.Name, nameBytes)
	b = append(b, byte(len(name)))
	b = append(b, name...)
	if len(f.Bounds) > listedBounds {
		return append(b, 0)
	}
	b = append(b, byte(len(f.Bounds)))
	for _, at := range f.Bounds {
		b = le.AppendUint64(b, uint64(at))
	}
	return b
}

// appendPayload completes an announcement.
func appendPayload(b, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	return append(b, payload...)
}

func appendAbortion(b []byte, by int, lost bool, text string) []byte {
	text = clip(text, textBytes)
	b = append(b, protocol, byte(abortion), 0)
	if lost {
		b[len(b)-1] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(by))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

func appendGoodbye(b []byte) []byte { return append(b, protocol, byte(goodbye)) }

// cause is what an abortion makes known.
func (m *message) cause() error {
	var err error = &told{m.text, m.lost}
	if m.by != nobody {
		err = &comm.RankError{Rank: m.by, Err: err}
	}
	return err
}

// told is an error of another rank: its text, and whether it was ErrLost.
type told struct {
	text string
	lost bool
}

func (t *told) Error() string { return t.text }

func (t *told) Is(target error) bool { return t.lost && target == ErrLost }

// clip shortens a text to at most n bytes, at the end.
func clip(s string, n int) string {
	const more = "..."
	if len(s) <= n {
		return s
	}
	n -= len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

func hashBounds(bounds []int) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, at := range bounds {
		binary.LittleEndian.PutUint64(b[:], uint64(at))
		h.Write(b[:])
	}
	return h.Sum64()
}

// decoder takes a message apart. The first read beyond its end makes it short.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.short, d.b = true, nil
		return make([]byte, n)
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u8() uint8   { return d.bytes(1)[0] }
func (d *decoder) u16() int    { return int(binary.LittleEndian.Uint16(d.bytes(2))) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// decode reads the message at the start of b, which may go on beyond it.
func decode(b []byte) (message, error) {
	d := decoder{b: b}
	if v := d.u8(); v != protocol {
		return message{}, fmt.Errorf("message of protocol %d, want %d: all ranks must run the same build", v, protocol)
	}
	m := message{kind: kind(d.u8())}
	switch m.kind {
	case announcement:
		d.announcement(&m)
	case abortion:
		m.lost = d.u8() != 0
		m.by = int(int64(d.u64()))
		m.text = string(d.bytes(d.u16()))
	case goodbye:
	default:
		return message{}, fmt.Errorf("message of unknown kind %d: all ranks must run the same build", m.kind)
	}
	if d.short {
		return message{}, errors.New("message ends too early: all ranks must run the same build")
	}
	return m, nil
}

func (d *decoder) announcement(m *message) {
	m.seq = d.u64()
	f := &m.form
	f.Kind, f.Send, f.Recv = comm.Kind(d.u8()), dtype.DType(d.u8()), dtype.DType(d.u8())
	f.Sig.Step, f.Sig.Bucket = int(int64(d.u64())), int(int64(d.u64()))
	f.Sig.Layout = d.u64()
	f.Count = int(d.u64())
	m.hash = d.u64()
	f.Sig.Name = string(d.bytes(int(d.u8())))
	if n := int(d.u8()); n > 0 {
		f.Bounds = make([]int, n)
		for i := range f.Bounds {
			f.Bounds[i] = int(d.u64())
		}
	}
	m.payload = d.bytes(d.u16())
}

// differ compares what a peer announces with this rank's own operation.
func (m *message) differ(peer, rank int, own comm.Form, ownHash uint64) string {
	theirs := m.form
	own.Sig.Name = clip(own.Sig.Name, nameBytes)
	if len(own.Bounds) > listedBounds && theirs.Bounds == nil {
		if m.hash == ownHash {
			theirs.Bounds = own.Bounds
		} else {
			own.Bounds = nil
		}
	}
	if rank < peer {
		if d := comm.DifferentForms(rank, own, peer, theirs); d != "" {
			return d
		}
	} else if d := comm.DifferentForms(peer, theirs, rank, own); d != "" {
		return d
	}
	if m.hash != ownHash {
		return fmt.Sprintf("bounds: ranks %d and %d cut the buffer differently", min(rank, peer), max(rank, peer))
	}
	return ""
}
