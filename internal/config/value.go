package config

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zerogap/zerogap/dtype"
)

// maxWhole is 2^53: up to here every whole number is a float64, so that 5e8
// and 500000000 cannot differ.
const maxWhole = 1 << 53

// convert returns raw in the Go type of the key: bool, int, float64, string,
// dtype.DType, []int, []string, [2]float64, []any or map[string]any. The error
// says what is allowed and does not name the key.
func (k *Key) convert(raw any) (any, error) {
	var (
		v  any
		ok bool
	)
	switch k.Kind {
	case Bool:
		v, ok = raw.(bool)
	case Int:
		v, ok = k.whole(raw)
	case Float:
		v, ok = k.float(raw)
	case String:
		v, ok = raw.(string)
	case Enum:
		v, ok = k.enum(raw)
	case DType:
		if s, isString := raw.(string); isString {
			d, err := dtype.Parse(s)
			v, ok = d, err == nil
		}
	case List:
		v, ok = raw.([]any)
	case Object:
		v, ok = raw.(map[string]any)
	case Ints, Enums, FloatPair:
		v, ok = k.list(raw)
	}
	if ok {
		return v, nil
	}
	return nil, k.mismatch(raw)
}

// mismatch explains why raw is not a value of the key.
func (k *Key) mismatch(raw any) error {
	text := fmt.Sprint(raw)
	for _, e := range k.Elsewhere {
		if strings.EqualFold(e, text) {
			return fmt.Errorf("not supported; %s", k.want())
		}
	}
	if raw == "auto" && k.Kind != String {
		return fmt.Errorf(`%s ("auto" is for a trainer that fills the value in; write the value itself)`, k.want())
	}
	if s, isString := raw.(string); isString && (k.Kind == Int || k.Kind == Float || k.Kind == Bool) {
		if looksLike(k, s) {
			return fmt.Errorf("%s, without quotes", k.want())
		}
	}
	if k.Kind == Int && tooLarge(raw) {
		return fmt.Errorf("%s, up to 2^53", k.want())
	}
	return fmt.Errorf("%s", k.want())
}

func tooLarge(raw any) bool {
	switch x := raw.(type) {
	case int64:
		return x > maxWhole
	case float64:
		return x > maxWhole
	}
	return false
}

// looksLike reports whether the string would be a value without its quotes.
func looksLike(k *Key, s string) bool {
	if k.Kind == Bool {
		return s == "true" || s == "false"
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return false
	}
	_, err = k.convert(x)
	return err == nil
}

func (k *Key) whole(raw any) (int, bool) {
	var n int64
	switch x := raw.(type) {
	case int:
		n = int64(x)
	case int64:
		n = x
	case float64:
		if x != math.Trunc(x) || math.Abs(x) > maxWhole { // false for NaN and infinities too
			return 0, false
		}
		n = int64(x)
	default:
		return 0, false
	}
	if n > maxWhole || n < -maxWhole || int64(int(n)) != n || !k.Range.allows(float64(n)) {
		return 0, false
	}
	return int(n), true
}

func (k *Key) float(raw any) (float64, bool) {
	var x float64
	switch v := raw.(type) {
	case float64:
		x = v
	case int64:
		x = float64(v)
	case int:
		x = float64(v)
	default:
		return 0, false
	}
	return x, !math.IsNaN(x) && !math.IsInf(x, 0) && k.Range.allows(x)
}

func (k *Key) enum(raw any) (string, bool) {
	s, ok := raw.(string)
	if !ok {
		return "", false
	}
	for _, a := range k.Allowed {
		if a == s || k.FoldCase && strings.EqualFold(a, s) {
			return a, true
		}
	}
	return "", false
}

func (k *Key) list(raw any) (any, bool) {
	elems, ok := asList(raw)
	if !ok || len(elems) == 0 && !k.emptyByDefault() {
		return nil, false
	}
	switch k.Kind {
	case Ints:
		return convertAll(elems, k.whole)
	case Enums:
		return convertAll(elems, k.enum)
	}
	pair, ok := convertAll(elems, k.float)
	if !ok || len(pair) != 2 {
		return nil, false
	}
	return [2]float64(pair), true
}

func convertAll[T any](elems []any, f func(any) (T, bool)) ([]T, bool) {
	out := make([]T, 0, len(elems))
	for _, e := range elems {
		v, ok := f(e)
		if !ok {
			return nil, false
		}
		out = append(out, v)
	}
	return out, true
}

// emptyByDefault: only lists that are empty by default may be empty.
func (k *Key) emptyByDefault() bool {
	elems, ok := asList(k.Default)
	return ok && len(elems) == 0
}

// asList takes what the readers give and what the table's defaults are
// written as.
func asList(raw any) ([]any, bool) {
	switch l := raw.(type) {
	case []any:
		return l, true
	case []int:
		return widenList(l), true
	case []string:
		return widenList(l), true
	case []float64:
		return widenList(l), true
	}
	return nil, false
}

func widenList[T any](l []T) []any {
	out := make([]any, len(l))
	for i, v := range l {
		out[i] = v
	}
	return out
}

// show formats a value for a message: as it would be written, on one line, and
// shortened when it is long.
func show(raw any) string {
	var b strings.Builder
	writeValue(&b, raw)
	const limit = 80
	if r := []rune(b.String()); len(r) > limit {
		return string(r[:limit]) + "..."
	}
	return b.String()
}

func writeValue(b *strings.Builder, raw any) {
	if b.Len() > 400 { // enough for any message; a list may be endless
		return
	}
	if l, ok := asList(raw); ok {
		b.WriteByte('[')
		for i, e := range l {
			if i > 0 {
				b.WriteString(", ")
			}
			writeValue(b, e)
			if b.Len() > 400 {
				return
			}
		}
		b.WriteByte(']')
		return
	}
	switch v := raw.(type) {
	case nil:
		b.WriteString("null")
	case string:
		q, err := json.Marshal(v)
		if err != nil {
			panic("config: a string that cannot be quoted: " + err.Error())
		}
		b.Write(q)
	case float64:
		b.WriteString(showFloat(v))
	case map[string]any:
		fmt.Fprintf(b, "{section with %s}", strings.Join(sortedKeys(v), ", "))
	case []map[string]any:
		b.WriteString("[[list of sections]]")
	default:
		fmt.Fprint(b, v)
	}
}

// showFloat writes a float in the form that people write: 15099494.4, 5e-05.
func showFloat(x float64) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 1):
		return "inf"
	case math.IsInf(x, -1):
		return "-inf"
	case math.Abs(x) >= 1e-3 && math.Abs(x) < 1e16:
		s := strconv.FormatFloat(x, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	case x == 0:
		return "0.0"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
