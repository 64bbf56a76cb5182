package safetensors

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// assemble builds a file of header and data without any check.
func assemble(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

func TestCorruptFiles(t *testing.T) {
	const x = `"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	eight := make([]byte, 8)
	cases := []struct {
		name string
		raw  []byte
		want string
	}{
		{"empty file", nil, "0 bytes are too few"},
		{"text file", []byte("this is a text file, no tensors"), "over the limit of 100000000"},
		{"header past the end", assemble("{}", nil)[:9], "header length 2 does not fit into a file of 9 bytes"},
		{"no header", assemble("", nil), "does not start with '{'"},
		{"leading space", assemble(" {}", nil), "does not start with '{'"},
		{"array", assemble("[]", nil), "does not start with '{'"},
		{"unclosed", assemble(`{`+x, eight), "header: "},
		{"text after", assemble(`{`+x+`} {}`, eight), "text after the closing brace"},
		{"not UTF-8", assemble("{\"\xff\":{}}", nil), "not valid UTF-8"},
		{"duplicate tensor", assemble(`{`+x+`,`+x+`}`, eight), `duplicate name "x"`},
		{"duplicate field", assemble(`{"x":{"dtype":"F32","dtype":"F32"}}`, nil), `tensor "x": duplicate name "dtype"`},
		{"escaped duplicate", assemble(`{`+x+`,"\u0078":{}}`, eight), `duplicate name "x"`},
		{"unknown dtype", assemble(`{"x":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}`, eight), `unknown dtype "F31": allowed are BOOL, `},
		{"unknown field", assemble(`{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"crc":1}}`, eight), `unknown field "crc"`},
		{"missing field", assemble(`{"x":{"dtype":"F32","shape":[2]}}`, eight), "is missing"},
		{"not an object", assemble(`{"x":3}`, nil), `found 3 where '{' belongs`},
		{"null shape", assemble(`{"x":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, eight), `where '[' belongs`},
		{"negative size", assemble(`{"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, eight), "-2 is no valid size or offset"},
		{"fractional size", assemble(`{"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, eight), "2.0 is no valid size or offset"},
		{"text size", assemble(`{"x":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}`, eight), "found 2 where an integer belongs"},
		{"size overflow", assemble(`{"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}`, eight), "overflows"},
		{"byte overflow", assemble(`{"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}`, nil), "needs 4611686018427387904 elements"},
		{"huge number", assemble(`{"x":{"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}}`, eight), "1e400 is no valid size or offset"},
		{"three offsets", assemble(`{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, eight), "data_offsets has 3 numbers, not 2"},
		{"backwards", assemble(`{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, eight), "run backwards"},
		{"shape against bytes", assemble(`{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, eight), "shape [3] of F32 needs 3 elements of 4 bytes"},
		{"truncated data", assemble(`{`+x+`}`, eight[:7]), `tensor "x" ends at data byte 8, the file has 7: the file is truncated`},
		{"bytes at the end", assemble(`{`+x+`}`, make([]byte, 9)), "data bytes 8 to 9 at the end belong to no tensor"},
		{"hole", assemble(`{`+x+`,"y":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, make([]byte, 10)), `data bytes 8 to 9 before tensor "y"`},
		{"overlap", assemble(`{`+x+`,"y":{"dtype":"U8","shape":[2],"data_offsets":[7,9]}}`, make([]byte, 9)), `tensor "y" starts at data byte 7, inside the tensor before it`},
		{"metadata number", assemble(`{"__metadata__":{"k":1}}`, nil), "found 1 where a string belongs"},
		{"metadata null", assemble(`{"__metadata__":null}`, nil), "found null where '{' belongs"},
		{"metadata twice", assemble(`{"__metadata__":{"k":"1","k":"2"}}`, nil), `duplicate name "k"`},
	}
	dir := t.TempDir()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, "model.safetensors")
			if err := os.WriteFile(path, c.raw, 0o644); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path)
			if err == nil {
				t.Fatalf("accepted, names %q", f.Names())
			}
			if msg := err.Error(); !strings.HasPrefix(msg, "read "+path+": ") || !strings.Contains(msg, c.want) || strings.Contains(msg, "\n") {
				t.Errorf("error %q, want %q", msg, c.want)
			}
		})
	}
}

// Every proper prefix of a good file must be refused.
func TestEveryTruncation(t *testing.T) {
	raw := read(t, pythonFile)
	for n := range raw {
		if _, err := NewFile(bytes.NewReader(raw[:n]), int64(n)); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(raw))
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                        "read " + dir + ": not a regular file",
		filepath.Join(dir, "none"): "none: no such file or directory",
	} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A file that shrinks after Open is noticed when its tensor is read.
func TestShrunkFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	if err := Write(path, []Tensor{{"x", []int{4}, []float32{1, 2, 3, 4}}}, nil); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if err := os.Truncate(path, int64(len(read(t, path))-4)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Float32("x"); err == nil || !strings.Contains(err.Error(), `read `+path+`: tensor "x": unexpected EOF`) {
		t.Errorf("error %v", err)
	}
}

// FuzzNewFile feeds arbitrary bytes to the reader. What it accepts must read
// without an error, cover the data exactly, and survive a rewrite.
func FuzzNewFile(f *testing.F) {
	raw, err := os.ReadFile(pythonFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(assemble(`{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8)))
	f.Add(assemble(`{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"y":{"dtype":"I64","shape":[0,9],"data_offsets":[4,4]}}`, make([]byte, 4)))
	f.Add(assemble(`{"x":{"dtype":"F8_E4M3","shape":[1,1],"data_offsets":[0,1]}}  `, make([]byte, 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, err := NewFile(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		total := 0
		var again []Tensor
		for _, name := range file.Names() {
			b, err := file.Bytes(name)
			if err != nil {
				t.Fatal(err)
			}
			total += len(b)
			if d, ok := formatOf(file.DType(name)); ok {
				buf, err := file.Buffer(name)
				if err != nil || buf.DType != d {
					t.Fatal(buf.DType, err)
				}
				again = append(again, Tensor{name, file.Shape(name), buf})
			}
		}
		if header := int(binary.LittleEndian.Uint64(raw)); total+header+lengthBytes != len(raw) {
			t.Fatalf("%d bytes of tensors in a file of %d with a header of %d", total, len(raw), header)
		}
		var w bytes.Buffer
		if err := Encode(&w, again, file.Metadata()); err != nil {
			t.Fatal(err)
		}
		second, err := NewFile(bytes.NewReader(w.Bytes()), int64(w.Len()))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range again {
			want, err1 := file.Bytes(x.Name)
			got, err2 := second.Bytes(x.Name)
			if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
				t.Fatalf("%q changed: %x, was %x (%v, %v)", x.Name, got, want, err1, err2)
			}
		}
	})
}
