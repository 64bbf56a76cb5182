package config

import (
	"fmt"
	"strings"
)

// Text returns the keys for reading in a terminal, section by section: name,
// type, default and status on a line, the meaning below. A filter keeps the keys
// whose path holds it, in any case of letters; "" keeps all.
func Text(filter string) string {
	var b strings.Builder
	filter = strings.ToLower(filter)
	for _, s := range Sections() {
		headed := false
		for _, k := range Keys() {
			if sectionOf(k.Path) != s.Path || !strings.Contains(strings.ToLower(k.Path), filter) {
				continue
			}
			if !headed {
				headed = true
				title := "[" + s.Path + "]"
				if s.Path == "" {
					title = "top level"
				}
				fmt.Fprintf(&b, "%s  %s\n", title, strings.ReplaceAll(s.Doc, "`", ""))
			}
			fmt.Fprintf(&b, "  %s  (%s; default %s; %v)\n", leafOf(k.Path), k.typeText(), strings.ReplaceAll(k.defaultText(), "`", ""), k.Status)
			if doc := k.docText(); doc != "" {
				fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(doc, "`", ""))
			}
		}
		if headed {
			b.WriteByte('\n')
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
