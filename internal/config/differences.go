package config

import (
	"fmt"
	"reflect"

	"github.com/zerogap/zerogap/dtype"
)

// Difference is a key that two configurations have different values of.
type Difference struct {
	Path string
	A, B string // as in a TOML file
}

// Differences compares two configurations, in the order of the documentation.
func Differences(a, b *Config) []Difference {
	var all []Difference
	fa, fb := fieldsOf(a), fieldsOf(b)
	for _, k := range Keys() {
		x, bound := fa[k.Path]
		y := fb[k.Path]
		if bound && !reflect.DeepEqual(x.Interface(), y.Interface()) {
			all = append(all, Difference{Path: k.Path, A: value(x.Interface()), B: value(y.Interface())})
		}
	}
	return all
}

func value(v any) string {
	switch v := v.(type) {
	case dtype.DType:
		return v.String()
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(v)
}
