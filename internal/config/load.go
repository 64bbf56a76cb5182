package config

import (
	"errors"
	"fmt"
	"strings"
)

// Check is a further examination of a section by code that knows more of it,
// such as the network's own validation. It runs when every key of the section
// was right by itself, whatever else is wrong, so that its findings are
// reported together with all others.
type Check struct {
	Section string // as in "model"; sections below it are included
	// Run may return an error made with [errors.Join]. Each part should be one
	// line that begins with the dotted path of a key.
	Run func(*Config) error
}

// Load reads the configuration in the file at path and puts the settings of
// sets over it: file over defaults, settings over file, a later setting over
// an earlier one. An empty path is a file with nothing in it.
//
// The format goes by the extension: TOML (.toml), YAML (.yaml, .yml) or JSON
// (.json). DeepSpeed's keys stand at the top level, as in its JSON files, or
// below a key deepspeed. A setting is key=value with a dotted key and a TOML
// value; a bare word is a string.
//
// All that is wrong is reported at once: the error joins one error of one line
// for each mistake, which begins with the file's name or with -set.
func Load(path string, sets []string, checks ...Check) (*Config, error) {
	return LoadFor(World{}, path, sets, checks...)
}

// World is a number of ranks that is decided outside of the configuration, and who
// decided it, for messages.
type World struct {
	Size   int // 0: by comm.world
	Origin string
}

// LoadFor is [Load] for ranks that a launcher has started. Their number takes the
// place of a file's comm.world, and one that is set on the command line must agree.
func LoadFor(w World, path string, sets []string, checks ...Check) (*Config, error) {
	l := newLoader(path)
	l.world = w
	if !l.file() {
		return nil, errors.Join(l.errs...)
	}
	for _, s := range sets {
		l.setting(s)
	}
	l.launched()
	l.assign()
	l.derive()
	l.cross()
	l.batch()
	l.warn()
	l.warnOrder()
	for _, check := range checks {
		if l.soundSection(check.Section) {
			l.join(check.Run(l.cfg))
		}
	}
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	return l.cfg, nil
}

// loader is one call of Load.
type loader struct {
	path    string
	keys    []Key
	index   map[string]*Key
	groups  map[string]bool // paths that are sections, or lead to one
	known   []string        // all paths, for suggestions
	entries map[string]entry
	cfg     *Config
	world   World

	bad  map[string]bool // keys whose value was refused, or that someone tried to write
	errs []error
}

// entry is a value as it was given.
type entry struct {
	value   any
	written string // the path as it was written, with "deepspeed." where that was
	where   string // file or -set
}

func newLoader(path string) *loader {
	l := &loader{
		path: path, keys: Keys(), cfg: new(Config),
		index: map[string]*Key{}, groups: map[string]bool{"": true},
		entries: map[string]entry{}, bad: map[string]bool{},
	}
	for i := range l.keys {
		k := &l.keys[i]
		l.index[k.Path] = k
		l.known = append(l.known, k.Path)
		for s := sectionOf(k.Path); s != ""; s = sectionOf(s) {
			l.groups[s] = true
		}
	}
	for _, s := range sortedKeys(l.groups) {
		if s != "" {
			l.known = append(l.known, s)
		}
	}
	return l
}

// fail records an error about the value of a key.
func (l *loader) fail(path, format string, args ...any) {
	e, given := l.entries[path]
	if !given {
		e = entry{written: path, where: l.source()}
	}
	l.bad[path] = true
	l.errs = append(l.errs, fmt.Errorf("%s: %s: %s", e.where, e.written, fmt.Sprintf(format, args...)))
}

// failValue records an error about a value that was given.
func (l *loader) failValue(path, format string, args ...any) {
	e := l.entries[path]
	l.bad[path] = true
	l.errs = append(l.errs, fmt.Errorf("%s: %s = %s: %s", e.where, e.written, show(e.value), fmt.Sprintf(format, args...)))
}

// source names the file for messages about what is not in it.
func (l *loader) source() string {
	if l.path == "" {
		return "configuration"
	}
	return l.path
}

// sound reports whether none of the keys was refused, so that comparing them
// makes sense.
func (l *loader) sound(paths ...string) bool {
	for _, p := range paths {
		if l.bad[p] {
			return false
		}
	}
	return true
}

func (l *loader) soundSection(section string) bool {
	for p := range l.bad {
		if strings.HasPrefix(p, section+".") {
			return false
		}
	}
	return true
}

func (l *loader) given(path string) bool {
	_, ok := l.entries[path]
	return ok
}

// join adds the error of a check, in its parts.
func (l *loader) join(err error) {
	if err == nil {
		return
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			l.join(e)
		}
		return
	}
	l.errs = append(l.errs, fmt.Errorf("%s: %w", l.source(), err))
}

func (l *loader) warnf(format string, args ...any) {
	l.cfg.Warnings = append(l.cfg.Warnings, fmt.Sprintf(format, args...))
}
