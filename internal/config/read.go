package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// maxFile bounds what is read: a configuration is a page, and a path that is
// given by mistake may be a data file.
const maxFile = 1 << 20

// readTree reads a file into nested maps, lists, bool, int64, float64, string
// and nil. The format goes by the file's extension. Errors name the line but
// not the file.
func readTree(path string) (map[string]any, []error) {
	var read func([]byte) (map[string]any, []error)
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".toml":
		read = readTOML
	case ".yaml", ".yml":
		read = readYAML
	case ".json":
		read = readJSON
	default:
		return nil, []error{fmt.Errorf("cannot tell the format from the extension %q: name the file .toml, .yaml, .yml or .json", ext)}
	}
	data, err := readFile(path)
	if err != nil {
		return nil, []error{err}
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(data) {
		return nil, []error{errors.New("not a text file in UTF-8")}
	}
	return read(data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("no such file: give the path of a .toml, .yaml or .json configuration")
	}
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes: this is no configuration", maxFile)
	}
	return data, nil
}

// withoutPath drops operation and path from a file error: the caller says the path.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}

func readTOML(data []byte) (map[string]any, []error) {
	tree := map[string]any{}
	if _, err := toml.Decode(string(data), &tree); err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return nil, []error{lineErrorf(pe.Position.Line, "%s", oneLine(tomlMessage(pe)))}
		}
		return nil, []error{errors.New(oneLine(strings.TrimPrefix(err.Error(), "toml: ")))}
	}
	return tree, nil
}

// tomlMessage returns the parser's message, in the words of this package where
// a key is given twice.
func tomlMessage(pe toml.ParseError) string {
	msg := pe.Message
	if msg == "" { // errors of some values carry their text in Error alone
		msg = strings.TrimPrefix(pe.Error(), "toml: ")
	}
	if strings.HasSuffix(strings.TrimSuffix(msg, "."), "has already been defined") {
		return "duplicate key: " + msg
	}
	return msg
}

func lineErrorf(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// jsonReader walks the tokens of a JSON document, so that keys given twice are
// seen, which decoding into a map hides.
type jsonReader struct {
	dec  *json.Decoder
	data []byte
	errs []error // duplicates
}

func readJSON(data []byte) (map[string]any, []error) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data}
	r.dec.UseNumber()
	v, err := r.value("")
	if err == nil {
		if _, end := r.dec.Token(); end != io.EOF {
			err = errors.New("more text after the end of the configuration")
		}
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends before the configuration does")
		}
		return nil, append(r.errs, lineErrorf(r.line(), "%s", err))
	}
	tree, ok := v.(map[string]any)
	if !ok {
		return nil, []error{fmt.Errorf("must be a JSON object, not %s", show(v))}
	}
	return tree, r.errs
}

func (r *jsonReader) line() int {
	return 1 + bytes.Count(r.data[:min(int(r.dec.InputOffset()), len(r.data))], []byte("\n"))
}

func (r *jsonReader) value(path string) (any, error) {
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '{' {
			return r.object(path)
		}
		return r.array(path)
	case json.Number:
		return jsonNumber(string(t))
	}
	return tok, nil
}

func (r *jsonReader) object(path string) (any, error) {
	m := map[string]any{}
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("a key must be a string, not %v", tok)
		}
		line, full := r.line(), join(path, name)
		v, err := r.value(full)
		if err != nil {
			return nil, err
		}
		if _, twice := m[name]; twice {
			r.errs = append(r.errs, lineErrorf(line, "duplicate key: %s", full))
		}
		m[name] = v
	}
	_, err := r.dec.Token() // '}'
	return m, err
}

func (r *jsonReader) array(path string) (any, error) {
	l := []any{}
	for r.dec.More() {
		v, err := r.value(path)
		if err != nil {
			return nil, err
		}
		l = append(l, v)
	}
	_, err := r.dec.Token() // ']'
	return l, err
}

func jsonNumber(s string) (any, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("the number %s is out of range", s)
	}
	return x, nil
}

// join appends a name to a dotted path; a name that is no bare TOML key is
// quoted, so that "a.b" never passes for b in section a.
func join(path, name string) string {
	bare := name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
	if !bare {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
