package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// file flattens the file into entries; false if it cannot be read at all.
func (l *loader) file() bool {
	if l.path == "" {
		return true
	}
	tree, errs := readTree(l.path)
	for _, err := range errs {
		l.errs = append(l.errs, fmt.Errorf("%s: %w", l.path, err))
	}
	l.flatten(tree, "", "", l.path)
	return tree != nil
}

// flatten records the leaves of a tree below path, which was written as prefix
// says. Both end without a dot.
func (l *loader) flatten(tree map[string]any, path, written, where string) {
	for _, name := range sortedKeys(tree) {
		value, p, w := tree[name], join(path, name), join(written, name)
		if written == "" && name == "deepspeed" {
			l.section(value, "", w, where)
			continue
		}
		k, isKey := l.index[p]
		switch {
		case isKey && value == nil && (k.Default == nil || k.Status == NoEffect):
			// null is how YAML and JSON say "none".
		case isKey:
			if old, twice := l.entries[p]; twice && old.where == where && old.written != w && where != settingSource {
				l.errs = append(l.errs, fmt.Errorf("%s: duplicate key: %s is given as %s too", where, old.written, w))
			}
			l.entries[p] = entry{value, w, where}
		case l.groups[p] && !(written == "deepspeed" && l.own(p)):
			l.section(value, p, w, where)
		default:
			l.unknown(p, w, where, value)
		}
	}
}

func (l *loader) section(value any, path, written, where string) {
	switch v := value.(type) {
	case nil: // "bf16:" with nothing below it
	case map[string]any:
		l.flatten(v, path, written, where)
	default:
		l.errs = append(l.errs, fmt.Errorf("%s: %s = %s: must be a section with keys of its own", where, written, show(v)))
	}
}

func (l *loader) own(section string) bool {
	for _, s := range Sections() {
		if s.Path == section {
			return s.Own
		}
	}
	return false
}

func (l *loader) unknown(path, written, where string, value any) {
	what := "key"
	if _, isMap := value.(map[string]any); isMap {
		what = "section"
	}
	near := nearest(path, l.known)
	l.errs = append(l.errs, fmt.Errorf("%s: %s: unknown %s; the nearest known key is %s", where, written, what, near))
	for _, k := range l.keys { // what was meant has a value that is not known: no more errors about that
		if k.Path == near || strings.HasPrefix(k.Path, near+".") {
			l.bad[k.Path] = true
		}
	}
}

// settingSource stands for the file name in messages about settings.
const settingSource = "-set"

// setting records one key=value.
func (l *loader) setting(s string) {
	key, text, ok := strings.Cut(s, "=")
	names := strings.Split(strings.TrimSpace(key), ".")
	for _, n := range names {
		ok = ok && n != "" && join("", n) == n
	}
	if !ok {
		l.errs = append(l.errs, fmt.Errorf("%s %s: must be key=value with a dotted key, as in run.steps=100", settingSource, show(s)))
		return
	}
	value, err := settingValue(strings.TrimSpace(text))
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s %s: %w", settingSource, show(s), err))
		return
	}
	for i := len(names) - 1; i > 0; i-- {
		value = map[string]any{names[i]: value}
	}
	l.flatten(map[string]any{names[0]: value}, "", "", settingSource)
}

// settingValue reads a TOML value; what is none and has nothing of TOML's
// punctuation is a string.
func settingValue(text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("not UTF-8")
	}
	var doc map[string]any
	_, err := toml.Decode("v = "+text, &doc)
	if err == nil && len(doc) == 1 {
		switch v := doc["v"].(type) {
		case bool, int64, float64, string, []any, map[string]any:
			return v, nil
		}
		return text, nil // a date, which no key takes, but may be a file's name
	}
	if text == "" || strings.ContainsAny(text, "\"'[]{}\n\r#") {
		return nil, errors.New(`neither a TOML value nor a bare word; write a string with such characters in double quotes`)
	}
	return text, nil
}

// assign converts every entry, puts it or the default into the configuration,
// and deals with keys that have no effect or are refused.
func (l *loader) assign() {
	fields := fieldsOf(l.cfg)
	for i := range l.keys {
		k := &l.keys[i]
		v, ok := l.valueOf(k)
		if !ok {
			continue
		}
		if f, bound := fields[k.Path]; bound {
			f.Set(reflect.ValueOf(v).Convert(f.Type()))
		}
	}
}

// valueOf returns the converted value of a key, from its entry or its default;
// false where there is neither. A refused value leaves the default, so that the
// rest can be checked.
func (l *loader) valueOf(k *Key) (any, bool) {
	e, given := l.entries[k.Path]
	if given {
		v, err := k.convert(e.value)
		switch {
		case err != nil:
			l.failValue(k.Path, "%s", err)
		case k.Status == Refused && !k.harmless(v):
			l.failValue(k.Path, "%s", k.refusal())
		default:
			return v, true
		}
	}
	if k.Default == nil {
		return nil, false
	}
	return k.standard(), true
}

// standard returns the default in the key's Go type.
func (k *Key) standard() any {
	v, err := k.convert(k.Default)
	if err != nil {
		panic(fmt.Sprintf("config: default of %s: %v", k.Path, err))
	}
	return v
}

// harmless reports whether a value of a key that is not honoured asks for
// nothing: it is the default, or a section that is empty or switched off.
func (k *Key) harmless(v any) bool {
	if m, isObject := v.(map[string]any); isObject {
		device, hasDevice := m["device"]
		return len(m) == 0 || m["enabled"] == false || hasDevice && (device == nil || device == "none")
	}
	return k.Default != nil && reflect.DeepEqual(v, k.standard())
}

func (k *Key) refusal() string {
	only := "leave it out"
	if k.Default != nil {
		only = fmt.Sprintf("only %s is accepted", show(k.Default))
	}
	return fmt.Sprintf("refused, since ignoring it would change results; %s. %s", only, strings.TrimSuffix(k.Doc, "."))
}

// fieldsOf maps the dotted path of every field with a key tag to the field.
func fieldsOf(c *Config) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Tag.Get("key")
			if name == "" {
				continue
			}
			p, f := join(path, name), v.Field(i)
			if f.Kind() == reflect.Struct {
				walk(p, f)
				continue
			}
			fields[p] = f
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return fields
}
