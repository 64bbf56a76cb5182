package monitor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// TensorBoard writes series as an event file, which TensorBoard shows. A run that
// resumes adds a file to the folder; TensorBoard then drops, from the files before
// it, what lies beyond the point of resumption.
//
// The step of an event counts samples, as in the CSV files. Only one rank opens it,
// and one goroutine uses it.
type TensorBoard struct {
	file *os.File
	size int64 // bytes that hold whole records
	now  func() time.Time
}

// OpenTensorBoard creates the folder if it is missing and an event file in it.
// o.From has the meaning it has for Open.
func OpenTensorBoard(o Options) (*TensorBoard, error) {
	return openTensorBoard(o, time.Now, fmt.Sprint(os.Getpid()))
}

func openTensorBoard(o Options, now func() time.Time, unique string) (*TensorBoard, error) {
	dir := filepath.Join(o.Path, o.JobName)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, tensorBoardHint(err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	start := now()
	// TensorBoard reads the files whose name holds "tfevents", in order of their names.
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%s.%09d", start.Unix(), host, unique, start.Nanosecond())
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, tensorBoardHint(err)
	}
	t := &TensorBoard{file: f, now: now}
	err = t.append(event(start, 0, fieldFileVersion, []byte("brain.Event:2")))
	if err == nil && o.From > 0 {
		// A session that starts: earlier events at this step or later are orphans.
		session := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), sessionStart)
		err = t.append(event(start, o.From+1, fieldSessionLog, session))
	}
	if err != nil {
		return nil, errors.Join(tensorBoardHint(err), f.Close())
	}
	return t, nil
}

func tensorBoardHint(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return fmt.Errorf("tensorboard: %w: choose another folder with tensorboard.output_path or tensorboard.job_name, or set tensorboard.enabled = false", err)
}

// Write appends one value to each event's series, as one record that is written
// whole or, when there is an error, not at all. Values are stored in 32 bits.
func (t *TensorBoard) Write(samples int, events ...Event) error {
	var summary []byte
	for _, e := range events {
		var value []byte
		value = protowire.AppendString(protowire.AppendTag(value, 1, protowire.BytesType), e.Name)
		value = protowire.AppendFixed32(protowire.AppendTag(value, 2, protowire.Fixed32Type), math.Float32bits(float32(e.Value)))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, 1, protowire.BytesType), value)
	}
	if err := t.append(event(t.now(), samples, fieldSummary, summary)); err != nil {
		return fmt.Errorf("tensorboard: write %s: %w", t.file.Name(), reason(err))
	}
	return nil
}

// Close closes the file.
func (t *TensorBoard) Close() error { return t.file.Close() }

// append writes a record, wholly or not at all.
func (t *TensorBoard) append(data []byte) error {
	r := record(data)
	if _, err := t.file.Write(r); err != nil {
		_ = t.file.Truncate(t.size) // that this fails too is of no interest beside err
		return err
	}
	t.size += int64(len(r))
	return nil
}

// Fields of the message Event of TensorBoard's event.proto.
const (
	fieldWallTime    protowire.Number = 1
	fieldStep        protowire.Number = 2
	fieldFileVersion protowire.Number = 3
	fieldSummary     protowire.Number = 5
	fieldSessionLog  protowire.Number = 7

	sessionStart = 1 // SessionLog.START
)

// event encodes an Event with one field beside its time and step.
func event(at time.Time, step int, field protowire.Number, content []byte) []byte {
	var e []byte
	e = protowire.AppendFixed64(protowire.AppendTag(e, fieldWallTime, protowire.Fixed64Type), math.Float64bits(float64(at.UnixMicro())/1e6))
	if step != 0 {
		e = protowire.AppendVarint(protowire.AppendTag(e, fieldStep, protowire.VarintType), uint64(step))
	}
	return protowire.AppendBytes(protowire.AppendTag(e, field, protowire.BytesType), content)
}

// record frames data as a TFRecord: its length and the data, each followed by a
// masked CRC-32C.
func record(data []byte) []byte {
	var b bytes.Buffer
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	for _, part := range [][]byte{length, data} {
		b.Write(part)
		b.Write(binary.LittleEndian.AppendUint32(nil, maskedCRC(part)))
	}
	return b.Bytes()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is the checksum of a TFRecord: a CRC of data that may hold CRCs itself
// is turned by 15 bits and shifted by a constant.
func maskedCRC(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
