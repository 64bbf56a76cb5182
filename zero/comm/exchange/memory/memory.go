// Package memory is a transport inside one process, for tests of what is built on
// transports. Messages are copied from the sender's buffer to the receiver's, and
// can be delayed, lost or damaged on the way.
package memory

import (
	"fmt"
	"sync"
	"time"

	"github.com/zerogap/zerogap/zero/comm/exchange"
)

// Message is one on its way.
type Message struct {
	From, To int
	Tag      exchange.Tag
	N        int // number among the messages from, to and with the tag, from 0
	Bytes    int
}

// Fate is what becomes of a message.
type Fate struct {
	Delay time.Duration
	Lose  bool // it never arrives
	// Fail ends the connection: the receiver's Test returns this error.
	Fail error
}

// Network connects the transports of a set of ranks.
type Network struct {
	fate func(Message) Fate

	mu    sync.Mutex
	ranks []*transport
	lanes map[lane]*traffic
}

// lane is a way of messages that keep their order.
type lane struct {
	from, to int
	tag      exchange.Tag
}

type traffic struct {
	n        int
	sends    []*request // sent and not received
	receives []*request // waiting for a message
}

type request struct {
	owner  *transport
	number exchange.Request
	b      []byte
	due    time.Time
	fate   Fate
}

// New connects size ranks. fate, which may be nil, is asked for every message.
func New(size int, fate func(Message) Fate) *Network {
	n := &Network{fate: fate, lanes: map[lane]*traffic{}}
	for r := range size {
		n.ranks = append(n.ranks, &transport{network: n, rank: r})
	}
	return n
}

// Open returns rank's transport, for exchange.Connect.
func (n *Network) Open(rank int) func() (exchange.Transport, error) {
	return func() (exchange.Transport, error) { return n.ranks[rank], nil }
}

// transport is one rank's end. Its fields belong to the network's mutex.
type transport struct {
	network  *Network
	rank     int
	free     []exchange.Request
	next     exchange.Request
	complete []exchange.Request
	err      error
}

// Rank implements exchange.Transport.
func (t *transport) Rank() int { return t.rank }

// Size implements exchange.Transport.
func (t *transport) Size() int { return len(t.network.ranks) }

// Isend implements exchange.Transport. Control messages are copied, data is read when
// it is received.
func (t *transport) Isend(b []byte, peer int, tag exchange.Tag) (exchange.Request, error) {
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	r := t.request(b)
	l := n.lane(lane{t.rank, peer, tag})
	if n.fate != nil {
		r.fate = n.fate(Message{From: t.rank, To: peer, Tag: tag, N: l.n, Bytes: len(b)})
	}
	l.n++
	r.due = time.Now().Add(r.fate.Delay)
	if tag == exchange.Control || r.fate.Lose {
		r.b = append([]byte(nil), b...)
		t.complete = append(t.complete, r.number)
		r.owner = nil
	}
	if !r.fate.Lose {
		l.sends = append(l.sends, r)
	}
	return r.number, nil
}

// Irecv implements exchange.Transport.
func (t *transport) Irecv(b []byte, peer int, tag exchange.Tag) (exchange.Request, error) {
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	r := t.request(b)
	l := n.lane(lane{peer, t.rank, tag})
	l.receives = append(l.receives, r)
	return r.number, nil
}

// Test implements exchange.Transport.
func (t *transport) Test(done []exchange.Request) ([]exchange.Request, error) {
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for k, l := range n.lanes {
		if k.to == t.rank {
			l.deliver(k, now)
		}
	}
	done = append(done, t.complete...)
	t.free = append(t.free, t.complete...)
	t.complete = t.complete[:0]
	return done, t.err
}

// deliver completes what can be, in order.
func (l *traffic) deliver(k lane, now time.Time) {
	for len(l.sends) > 0 && len(l.receives) > 0 && !l.sends[0].due.After(now) {
		s, r := l.sends[0], l.receives[0]
		l.sends, l.receives = l.sends[1:], l.receives[1:]
		if s.fate.Fail != nil {
			r.owner.err = &exchange.PeerError{Rank: k.from, Err: s.fate.Fail}
			return
		}
		if len(s.b) > len(r.b) {
			panic(fmt.Sprintf("memory: message of %d bytes from rank %d for room of %d at rank %d", len(s.b), k.from, len(r.b), k.to))
		}
		copy(r.b, s.b)
		for _, x := range []*request{s, r} {
			if x.owner != nil {
				x.owner.complete = append(x.owner.complete, x.number)
			}
		}
	}
}

// Pause implements exchange.Transport.
func (t *transport) Pause(idle int) {
	if idle < 10 {
		return
	}
	time.Sleep(20 * time.Microsecond)
}

// Cancel implements exchange.Transport.
func (t *transport) Cancel() {
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, l := range n.lanes {
		if k.tag != exchange.Data {
			continue
		}
		l.sends = t.others(l.sends)
		l.receives = t.others(l.receives)
	}
}

// others keeps the requests of other ranks.
func (t *transport) others(rs []*request) []*request {
	var kept []*request
	for _, r := range rs {
		if r.owner != t {
			kept = append(kept, r)
		}
	}
	return kept
}

// Close implements exchange.Transport.
func (t *transport) Close(bool) error { return nil }

func (n *Network) lane(k lane) *traffic {
	if n.lanes[k] == nil {
		n.lanes[k] = &traffic{}
	}
	return n.lanes[k]
}

// request takes a free number.
func (t *transport) request(b []byte) *request {
	r := &request{owner: t, b: b, number: t.next}
	if k := len(t.free); k > 0 {
		r.number = t.free[k-1]
		t.free = t.free[:k-1]
	} else {
		t.next++
	}
	return r
}
