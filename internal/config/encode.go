package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"github.com/BurntSushi/toml"

	"github.com/zerogap/zerogap/dtype"
)

// TOML returns the effective configuration as a TOML file in the order of the
// documentation. Load reads it back to an equal Config, but for Warnings about
// keys that have no effect and were left out, and for WorldOrigin.
func (c *Config) TOML() []byte {
	fields := fieldsOf(c)
	var b bytes.Buffer
	b.WriteString("# Effective configuration: what was written, derived and left at its default.\n")
	for _, s := range Sections() {
		var lines []byte
		for _, k := range Keys() {
			f, bound := fields[k.Path]
			if !bound || sectionOf(k.Path) != s.Path || !c.applies(k.Path) {
				continue
			}
			lines = append(lines, tomlLine(leafOf(k.Path), f.Interface())...)
		}
		if len(lines) == 0 {
			continue
		}
		if s.Path != "" {
			fmt.Fprintf(&b, "\n[%s]\n", s.Path)
		}
		b.Write(lines)
	}
	return b.Bytes()
}

// applies reports whether a key may be written beside the others: parameters
// of another type of optimizer or scheduler may not.
func (c *Config) applies(path string) bool {
	switch sectionOf(path) {
	case "optimizer.params":
		return leafOf(path) == "lr" || slices.Contains(optimizerParams(c.Optimizer.Type), leafOf(path))
	case "scheduler.params":
		return slices.Contains(schedulerParams(c.Scheduler.Type), leafOf(path))
	}
	return true
}

func tomlLine(name string, value any) []byte {
	if d, ok := value.(dtype.DType); ok {
		value = d.String()
	}
	line, err := toml.Marshal(map[string]any{name: value})
	if err != nil {
		panic(fmt.Sprintf("config: %s of type %s cannot be written as TOML: %v", name, reflect.TypeOf(value), err))
	}
	return line
}
