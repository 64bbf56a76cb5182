package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// Options say where checkpoints go. Ranks use equal ones.
type Options struct {
	Dir string // the folder of checkpoints; made by the first save
	// Keep is how many checkpoints with step tags stay, the ones saved last; 0 is
	// all. Older ones are deleted after a save has succeeded, never before, and
	// never the one just written. Those under other tags stay.
	Keep int
	// FS is nil for the disk.
	FS FS
}

// Saver writes checkpoints of one rank's optimizer. The ranks call its methods in
// the same order, between two steps, each from the goroutine that runs the
// training loop. What fails on one rank is an error on all, and ends nothing: the
// training can go on, and save again later. A rank that does not come is an error
// of the communicator, which ends the training.
type Saver struct {
	opt    *zero.Optimizer
	comm   comm.Communicator
	opts   Options
	copies arena    // memory of Begin
	open   *Pending // not committed
}

// NewSaver returns a Saver. c is the communicator that opt was made with.
func NewSaver(opt *zero.Optimizer, c comm.Communicator, o Options) *Saver {
	if o.FS == nil {
		o.FS = Disk{}
	}
	return &Saver{opt: opt, comm: c, opts: o}
}

// Attachment is a file of the caller in a checkpoint. Rank 0 writes those it was
// given; the other ranks give none.
type Attachment struct {
	Name string
	Data []byte
}

// Save writes a checkpoint and returns when it is durable on the disk.
func (s *Saver) Save(ctx context.Context, tag string, attached ...Attachment) error {
	p, err := s.begin(ctx, tag, attached, false)
	if err != nil {
		return err
	}
	p.write()
	return p.Commit(ctx)
}

// Begin copies this rank's part of the training and writes it in a goroutine of its
// own. The training may go on; when all ranks' Written report true, or any time
// later, every rank calls Commit, which makes the checkpoint appear. There is one
// at a time. The copies take what the optimizer state takes; their memory is kept
// for the next Begin.
func (s *Saver) Begin(ctx context.Context, tag string, attached ...Attachment) (*Pending, error) {
	p, err := s.begin(ctx, tag, attached, true)
	if err != nil {
		return nil, err
	}
	go p.write()
	return p, nil
}

// Close waits for the files of a checkpoint that was begun and not committed, and
// deletes them.
func (s *Saver) Close() error {
	p := s.open
	if p == nil {
		return nil
	}
	s.open = nil
	<-p.done
	return p.discard()
}

// Pending is a checkpoint that is being written.
type Pending struct {
	s       *Saver
	tag     string
	what    string // for messages, equal on all ranks
	temp    string // the folder it is written to
	files   []content
	done    chan struct{} // closed when written and failed are set
	written []FileInfo
	failed  error
	head    Manifest // without what is known at the end
}

// Tag returns the tag it will have.
func (p *Pending) Tag() string { return p.tag }

// Written reports whether this rank has no more to write: Commit will not wait for
// it.
func (p *Pending) Written() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (s *Saver) begin(ctx context.Context, tag string, attached []Attachment, copied bool) (*Pending, error) {
	if s.open != nil {
		return nil, fmt.Errorf("save checkpoint %q: %q is still being written: commit it first", tag, s.open.tag)
	}
	if err := s.opt.Drain(ctx); err != nil {
		return nil, fmt.Errorf("save checkpoint %q: %w", tag, err)
	}
	p := &Pending{
		s: s, tag: tag, temp: filepath.Join(s.opts.Dir, savingPrefix+tag), done: make(chan struct{}),
		what: fmt.Sprintf("checkpoint %q of step %d in %s", tag, s.opt.Progress().Tried, s.opts.Dir),
	}
	err := s.check(tag, attached)
	if err == nil && s.comm.Rank() == 0 {
		err = s.prepare(p.temp)
	}
	if _, err := meet(ctx, s.comm, "checkpoint to save", report{What: p.what}, err); err != nil {
		return nil, fmt.Errorf("save checkpoint %q: %w", tag, errors.Join(err, p.discard()))
	}
	p.head = s.head(tag)
	p.files = s.contents(attached, copied)
	s.open = p
	return p, nil
}

// check refuses what this rank knows to be wrong.
func (s *Saver) check(tag string, attached []Attachment) error {
	if err := s.opt.AtBoundary(); err != nil {
		return err
	}
	if err := CheckTag(tag); err != nil {
		return err
	}
	return checkAttachments(attached)
}

// prepare makes the folder to write in. What is there is of a save that was killed.
func (s *Saver) prepare(temp string) error {
	fs := s.opts.FS
	if err := fs.Mkdir(s.opts.Dir); err != nil {
		return err
	}
	if err := fs.Remove(temp); err != nil {
		return err
	}
	return fs.Mkdir(temp)
}

// Commit waits for this rank's files, and makes the checkpoint appear when those of
// all ranks are written. It is collective. After an error the checkpoint is not
// there, unless only the deletion of older ones failed, and nothing is left of it.
func (p *Pending) Commit(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.s.open = nil
	all, err := meet(ctx, p.s.comm, "checkpoint written", report{What: p.what, Files: p.written}, p.failed)
	if err == nil && p.s.comm.Rank() == 0 {
		err = p.publish(all)
	} else if err != nil {
		return fmt.Errorf("save checkpoint %q: %w", p.tag, errors.Join(err, p.discard()))
	}
	if err != nil {
		err = errors.Join(err, p.discard())
	}
	if _, err := meet(ctx, p.s.comm, "checkpoint saved", report{What: p.what}, err); err != nil {
		return fmt.Errorf("save checkpoint %q: %w", p.tag, err)
	}
	return nil
}

// discard removes what was written, on rank 0, when no rank writes any more.
func (p *Pending) discard() error {
	if p.s.comm.Rank() != 0 {
		return nil
	}
	return p.s.opts.FS.Remove(p.temp)
}
