package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/zerogap/zerogap/zero"
)

const (
	format  = "zerogap checkpoint"
	version = 1
)

// Manifest is the table of contents of a checkpoint. It is written last: a folder
// without it is no checkpoint.
type Manifest struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Tag     string `json:"tag"`
	// Serial counts the checkpoints of a folder in the order in which they were
	// saved, from 1.
	Serial    int    `json:"serial"`
	World     int    `json:"world"`     // ranks that wrote it
	Stage     int    `json:"stage"`     // ZeRO stage at which it was written
	DTypes    string `json:"dtypes"`    // formats of the training, for people
	Optimizer string `json:"optimizer"` // rules with their hyper-parameters, for people
	// Parts names pieces of the optimizer that were not its own, such as the faults of
	// a laboratory.
	Parts    []string      `json:"parts,omitempty"`
	Progress zero.Progress `json:"progress"`
	Params   []Param       `json:"parameters"` // in registration order
	Files    []FileInfo    `json:"files"`      // all but the manifest
}

// Param is a parameter of a checkpoint.
type Param struct {
	Name   string   `json:"name"`
	Shape  []int    `json:"shape"`
	DType  string   `json:"dtype"` // of its compute copy: fp32, bf16 or fp16
	Frozen bool     `json:"frozen,omitempty"`
	States []string `json:"states,omitempty"` // for instance exp_avg, exp_avg_sq, ema
}

// Len returns the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// FileInfo is a file of a checkpoint.
type FileInfo struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // hexadecimal, as sha256sum prints it
}

// envelope holds the manifest's own checksum: that of the bytes of its value.
type envelope struct {
	SHA256   string          `json:"sha256"`
	Manifest json.RawMessage `json:"manifest"`
}

// encode returns the bytes of manifest.json.
func (m *Manifest) encode() ([]byte, error) {
	body, err := json.MarshalIndent(m, "  ", "  ")
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "{\n  \"sha256\": %q,\n  \"manifest\": %s\n}\n", digest(body), body), nil
}

// decodeManifest reads and checks manifest.json.
func decodeManifest(raw []byte) (*Manifest, error) {
	if !bytes.HasSuffix(raw, []byte("}\n")) {
		return nil, errors.New("its end is missing")
	}
	var e envelope
	if err := strictJSON(raw, &e); err != nil {
		return nil, err
	}
	if got := digest(e.Manifest); got != e.SHA256 {
		return nil, fmt.Errorf("checksum is %s, the file says %s: it was changed after it was written", got, e.SHA256)
	}
	// The format first: another version may have other fields.
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(e.Manifest, &head); err != nil {
		return nil, err
	}
	if head.Format != format || head.Version != version {
		return nil, fmt.Errorf("it is a %q of version %d: this program reads a %q of version %d", head.Format, head.Version, format, version)
	}
	m := new(Manifest)
	if err := strictJSON(e.Manifest, m); err != nil {
		return nil, err
	}
	if m.World < 1 || len(m.Params) == 0 || len(m.Files) == 0 {
		return nil, errors.New("parameters, files or the world size are missing")
	}
	return m, nil
}

// strictJSON decodes raw, which must hold one value, all of its fields known.
func strictJSON(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more after its end")
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
