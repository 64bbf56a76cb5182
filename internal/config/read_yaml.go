package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// yamlReader turns the syntax tree into plain values. It reads the tree and
// not the decoder's result for two reasons: keys given twice are all reported,
// with their lines, and a plain scalar such as 5e8 is the number that YAML 1.2
// and its reader mean, where YAML 1.1 has a string.
type yamlReader struct {
	anchors map[string]any
	errs    []error
}

func readYAML(data []byte) (map[string]any, []error) {
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, []error{yamlSyntax(err)}
	}
	r := &yamlReader{anchors: map[string]any{}}
	var tree any = map[string]any{}
	seen := false
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if seen {
			return nil, []error{lineErrorf(doc.Body.GetToken().Position.Line, "a second document begins: a configuration is one")}
		}
		seen = true
		tree = r.value("", doc.Body)
	}
	m, ok := tree.(map[string]any)
	if !ok && len(r.errs) == 0 {
		return nil, []error{fmt.Errorf("must be keys with values, not %s", show(tree))}
	}
	return m, r.errs
}

// yamlSyntax puts the parser's error on one line, without the excerpt of the
// file that follows it.
func yamlSyntax(err error) error {
	var at interface {
		GetMessage() string
		GetToken() *token.Token
	}
	if errors.As(err, &at) && at.GetToken() != nil {
		return lineErrorf(at.GetToken().Position.Line, "%s", oneLine(at.GetMessage()))
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(first)
}

func (r *yamlReader) fail(n ast.Node, format string, args ...any) {
	r.errs = append(r.errs, lineErrorf(n.GetToken().Position.Line, format, args...))
}

func (r *yamlReader) value(path string, n ast.Node) any {
	switch n := n.(type) {
	case *ast.MappingNode:
		return r.mapping(path, n.Values)
	case *ast.MappingValueNode:
		return r.mapping(path, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		l := []any{}
		for _, e := range n.Values {
			l = append(l, r.value(path, e))
		}
		return l
	case *ast.AnchorNode:
		v := r.value(path, n.Value)
		r.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		v, ok := r.anchors[n.Value.GetToken().Value]
		if !ok {
			r.fail(n, "%s: nothing before is called &%s", path, n.Value.GetToken().Value)
		}
		return v
	case *ast.TagNode:
		r.fail(n, "%s: the tag %s is not supported; write the value without it", path, n.Start.Value)
		return nil
	}
	return r.scalar(path, n)
}

// plainFloat is a number of YAML 1.2's core schema that has an exponent.
var plainFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$`)

func (r *yamlReader) scalar(path string, n ast.Node) any {
	switch n := n.(type) {
	case *ast.NullNode:
		return nil
	case *ast.BoolNode:
		return n.Value
	case *ast.FloatNode:
		return n.Value
	case *ast.InfinityNode:
		return n.Value
	case *ast.NanNode:
		return math.NaN()
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.IntegerNode:
		switch v := n.Value.(type) {
		case int64:
			return v
		case uint64:
			if v <= math.MaxInt64 {
				return int64(v)
			}
			return float64(v)
		}
	case *ast.StringNode:
		if n.Token.Type == token.StringType && plainFloat.MatchString(n.Value) {
			if x, err := strconv.ParseFloat(n.Value, 64); err == nil {
				return x
			}
		}
		return n.Value
	}
	r.fail(n, "%s: a value of this form (%s) is not supported", path, n.Type())
	return nil
}

func (r *yamlReader) mapping(path string, values []*ast.MappingValueNode) any {
	m, lines := map[string]any{}, map[string]int{}
	var merged []map[string]any
	for _, kv := range values {
		if kv.Key.IsMergeKey() {
			merged = append(merged, r.merge(path, kv.Value)...)
			continue
		}
		name := kv.Key.GetToken().Value
		full, line := join(path, name), kv.Key.GetToken().Position.Line
		v := r.value(full, kv.Value)
		if first, twice := lines[name]; twice {
			r.fail(kv.Key, "duplicate key: %s, first given on line %d", full, first)
			continue
		}
		m[name], lines[name] = v, line
	}
	for _, from := range merged { // what is written wins over what is merged in
		for name, v := range from {
			if _, has := m[name]; !has {
				m[name] = v
			}
		}
	}
	return m
}

// merge returns the mappings that stand behind "<<".
func (r *yamlReader) merge(path string, n ast.Node) []map[string]any {
	v := r.value(path, n)
	l, isList := v.([]any)
	if !isList {
		l = []any{v}
	}
	var out []map[string]any
	for _, e := range l {
		m, ok := e.(map[string]any)
		if !ok {
			r.fail(n, "%s: << takes a mapping, not %s", path, show(e))
			continue
		}
		out = append(out, m)
	}
	return out
}
