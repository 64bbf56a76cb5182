package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	// maxHeader bounds the header, as in the reference implementation: names and
	// shapes of a million tensors fit, and a corrupt length cannot exhaust memory.
	maxHeader   = 100_000_000
	metadataKey = "__metadata__"
	lengthBytes = 8
)

// entry is one tensor of the header; begin and end count from the first data byte.
type entry struct {
	name       string
	dtype      DType
	shape      []int
	begin, end int64
}

// decodeHeader reads the JSON of the header. encoding/json alone would let
// duplicate and unknown keys pass, so the tokens are walked by hand.
func decodeHeader(raw []byte) ([]entry, map[string]string, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, nil, errors.New("header does not start with '{': not a safetensors file")
	}
	if !utf8.Valid(raw) {
		return nil, nil, errors.New("header is not valid UTF-8")
	}
	p := &parser{dec: json.NewDecoder(bytes.NewReader(raw))}
	p.dec.UseNumber()
	var entries []entry
	var meta map[string]string
	err := p.object(func(key string) error {
		if key == metadataKey {
			meta = map[string]string{}
			return p.object(func(k string) (err error) {
				meta[k], err = p.str()
				return err
			})
		}
		e, err := p.entry(key)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return nil, nil, errors.New("header: text after the closing brace")
	}
	return entries, meta, nil
}

type parser struct{ dec *json.Decoder }

func (p *parser) delim(want json.Delim) error {
	tok, err := p.token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("found %s where '%s' belongs", tokenString(tok), want)
	}
	return nil
}

func tokenString(tok json.Token) string {
	if tok == nil {
		return "null"
	}
	return fmt.Sprint(tok)
}

func (p *parser) token() (json.Token, error) {
	tok, err := p.dec.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	return tok, err
}

// object calls field for every key, which must read the value, and refuses
// duplicate keys.
func (p *parser) object(field func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		key, err := p.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("duplicate name %q", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *parser) str() (string, error) {
	tok, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("found %s where a string belongs", tokenString(tok))
	}
	return s, nil
}

// ints reads an array of non-negative integers.
func (p *parser) ints() ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.dec.More() {
		tok, err := p.token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("found %s where an integer belongs", tokenString(tok))
		}
		v, err := strconv.ParseInt(num.String(), 10, 64)
		if err != nil || v < 0 || v > math.MaxInt {
			return nil, fmt.Errorf("%s is no valid size or offset", num)
		}
		list = append(list, v)
	}
	return list, p.delim(']')
}

func (p *parser) entry(name string) (entry, error) {
	e := entry{name: name}
	var haveType, haveShape, haveOffsets bool
	err := p.object(func(key string) error {
		switch key {
		case "dtype":
			s, err := p.str()
			e.dtype, haveType = DType(s), true
			return err
		case "shape":
			list, err := p.ints()
			for _, v := range list {
				e.shape = append(e.shape, int(v))
			}
			haveShape = true
			return err
		case "data_offsets":
			list, err := p.ints()
			if err != nil {
				return err
			}
			if len(list) != 2 {
				return fmt.Errorf("data_offsets has %d numbers, not 2", len(list))
			}
			e.begin, e.end, haveOffsets = list[0], list[1], true
			return nil
		}
		return fmt.Errorf("unknown field %q: allowed are dtype, shape, data_offsets", key)
	})
	if err != nil {
		return e, err
	}
	if !haveType || !haveShape || !haveOffsets {
		return e, errors.New("dtype, shape or data_offsets is missing")
	}
	return e, e.check()
}

// check compares what the entry says of itself: type, shape and offsets.
func (e entry) check() error {
	size := e.dtype.Size()
	if size == 0 {
		return fmt.Errorf("unknown dtype %q: allowed are BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64", string(e.dtype))
	}
	n, err := elements(e.shape)
	if err != nil {
		return err
	}
	if e.end < e.begin {
		return fmt.Errorf("data_offsets [%d,%d] run backwards", e.begin, e.end)
	}
	if got := e.end - e.begin; int64(n) > math.MaxInt64/int64(size) || int64(n)*int64(size) != got {
		return fmt.Errorf("shape %s of %s needs %d elements of %d bytes, data_offsets [%d,%d] hold %d bytes",
			shapeString(e.shape), e.dtype, n, size, e.begin, e.end, got)
	}
	return nil
}

// checkCover sorts the entries by their data and verifies that they cover
// [0, dataLen) exactly once.
func checkCover(entries []entry, dataLen int64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	var at int64
	for _, e := range entries {
		switch {
		case e.end > dataLen:
			return fmt.Errorf("tensor %q ends at data byte %d, the file has %d: the file is truncated", e.name, e.end, dataLen)
		case e.begin < at:
			return fmt.Errorf("tensor %q starts at data byte %d, inside the tensor before it", e.name, e.begin)
		case e.begin > at:
			return fmt.Errorf("data bytes %d to %d before tensor %q belong to no tensor", at, e.begin, e.name)
		}
		at = e.end
	}
	if at != dataLen {
		return fmt.Errorf("data bytes %d to %d at the end belong to no tensor", at, dataLen)
	}
	return nil
}

// encodeHeader returns the header as JSON, padded with spaces so that the data
// start at a multiple of 8 bytes in the file.
func encodeHeader(entries []entry, metadata map[string]string) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	if len(metadata) > 0 {
		// encoding/json sorts the keys of a map.
		b.Write(quote(metadataKey))
		b.WriteByte(':')
		b.Write(quote(metadata))
	}
	for _, e := range entries {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(quote(e.name))
		fmt.Fprintf(&b, `:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, e.dtype, shapeString(e.shape), e.begin, e.end)
	}
	b.WriteByte('}')
	for (b.Len()+lengthBytes)%8 != 0 {
		b.WriteByte(' ')
	}
	return b.Bytes()
}

// quote marshals a string or a map of strings, neither of which can fail.
func quote(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("safetensors: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
