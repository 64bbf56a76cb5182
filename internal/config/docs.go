package config

import (
	"fmt"
	"strings"
)

//go:generate go test -run TestDocumentation -update

// docIntro stands before the tables in docs/configuration.md.
const docIntro = `# Configuration

<!-- Written from the table in internal/config by "go generate ./internal/config". -->

A run is described by one file. DeepSpeed's keys have DeepSpeed's names, meanings and, unless the table says otherwise, defaults; the sections ` + "`[model]`, `[diffusion]`, `[data]`, `[run]`, `[comm]` and `[lab]`" + ` are zerogap's own.

- **Formats**, by extension: TOML (` + "`.toml`" + `), JSON (` + "`.json`" + `, as DeepSpeed's own files) and YAML (` + "`.yaml`, `.yml`" + `). DeepSpeed's keys stand at the top level or below ` + "`deepspeed:`" + `.
- **Precedence**: defaults, then the file, then ` + "`-set key=value`" + ` on the command line, the last one first. A value is written as in TOML; a bare word is a string: ` + "`-set zero_optimization.stage=1 -set data.kind=procedural`" + `.
- **Strict**: an unknown key, a key given twice, a value of the wrong type or outside its range is an error that names the key, the value and what is allowed. All errors are reported at once, and nothing is allocated before.
- **Whole numbers** may be written 500000000, 500_000_000 (not in JSON) or 5e8, up to 2^53.
- **Batch**: train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × comm.world. Write any two of the three, or one of the first two; when all are written they must agree.
- The **effective configuration**, with everything filled in, is written beside the results of a run and can be used as a configuration again.

The status of a key:

- **honoured**: it does what its meaning says;
- **no effect**: it has no meaning here and cannot change results. It is accepted; where its value asks for something that does not happen, a warning says so;
- **refused**: it would change results if it were ignored. Only its default is accepted (for a section: nothing in it, or ` + "`enabled = false`" + `).
`

// Markdown returns docs/configuration.md.
func Markdown() []byte {
	var b strings.Builder
	b.WriteString(docIntro)
	own := false
	b.WriteString("\n# DeepSpeed's keys\n")
	for _, s := range Sections() {
		if s.Own && !own {
			own = true
			b.WriteString("\n# zerogap's own sections\n")
		}
		title := "Top level"
		if s.Path != "" {
			title = "`[" + s.Path + "]`"
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| key | type | default | status | meaning |\n|---|---|---|---|---|\n", title, s.Doc)
		for _, k := range Keys() {
			if sectionOf(k.Path) == s.Path {
				writeRow(&b, &k)
			}
		}
	}
	return []byte(b.String())
}

func writeRow(b *strings.Builder, k *Key) {
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", leafOf(k.Path), k.typeText(), k.defaultText(), k.Status, k.docText())
}

// defaultText is the column of defaults.
func (k *Key) defaultText() string {
	switch {
	case k.Default != nil:
		return "`" + show(k.Default) + "`"
	case k.Derived != "":
		return k.Derived
	}
	return "none"
}

// typeText is the column of types, with what is allowed.
func (k *Key) typeText() string {
	switch {
	case k.Kind == DType:
		return "fp32, bf16, fp16"
	case k.Kind == Enum:
		return strings.Join(k.Allowed, ", ")
	case k.Kind == Enums:
		return "list of " + strings.Join(k.Allowed, ", ")
	case k.Range.text != "":
		return k.Kind.String() + " " + k.Range.text
	}
	return k.Kind.String()
}

// docText is the column of meanings; reasons of keys without effect, which
// stand inside a sentence in a warning, become one of their own.
func (k *Key) docText() string {
	if k.Status != NoEffect || k.Doc == "" {
		return k.Doc
	}
	return strings.ToUpper(k.Doc[:1]) + k.Doc[1:] + "."
}
