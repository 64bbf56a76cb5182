package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Entry is a checkpoint in a folder of them.
type Entry struct {
	Tag  string
	Path string
	// Manifest is nil when the checkpoint cannot be used, for the reason in Err.
	Manifest *Manifest
	Err      error
}

// ErrNone says that a folder holds no checkpoint at all.
var ErrNone = errors.New("no checkpoints")

// List returns the checkpoints in dir, the one saved last first, with what Open
// says of each; checksums are not compared. A folder that does not exist holds
// none.
func List(dir string) ([]Entry, error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	var all []Entry
	for _, file := range files {
		tag := file.Name()
		if old, ok := strings.CutPrefix(tag, oldPrefix); ok {
			// A save that was killed between two renames leaves the checkpoint
			// that it was about to replace under this name only.
			if _, err := os.Stat(filepath.Join(dir, old)); err == nil {
				continue
			}
			tag = old
		}
		if file.IsDir() && !strings.HasPrefix(tag, hidden) {
			all = append(all, look(tag, filepath.Join(dir, file.Name())))
		}
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return b.serial() - a.serial() })
	return all, nil
}

func look(tag, path string) Entry {
	f, err := Open(path)
	if err != nil {
		return Entry{Tag: tag, Path: path, Err: err}
	}
	return Entry{Tag: tag, Path: path, Manifest: f.manifest, Err: f.Close()}
}

// serial orders entries; those that cannot be read come last.
func (e Entry) serial() int {
	if e.Manifest == nil {
		return 0
	}
	return e.Manifest.Serial
}

// Tags names the checkpoints for a message.
func Tags(all []Entry) string {
	if len(all) == 0 {
		return "there are none"
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.Tag
		if e.Err != nil {
			names[i] += " (damaged)"
		}
	}
	return "there are " + strings.Join(names, ", ")
}

// Tagged opens the checkpoint of that tag in dir and verifies it. When there is
// none the error lists those that are there.
func Tagged(dir, tag string) (*Folder, error) {
	if err := CheckTag(tag); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	all, err := List(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.Tag == tag {
			return OpenVerified(e.Path)
		}
	}
	return nil, fmt.Errorf("checkpoint: no tag %q in %s: %s", tag, dir, Tags(all))
}

// OpenVerified is Open followed by Verify.
func OpenVerified(path string) (*Folder, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	if err := f.Verify(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Latest opens and verifies the checkpoint in dir that the file "latest" names. It
// is strict: one that is missing or damaged is an error, see Find. Without any
// checkpoint the error is ErrNone.
func Latest(dir string) (*Folder, error) {
	tag, all, err := latest(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.Tag == tag {
			return OpenVerified(e.Path)
		}
	}
	return nil, fmt.Errorf("checkpoint: %s names %q, which is missing: %s", filepath.Join(dir, LatestFile), tag, Tags(all))
}

// latest returns the tag in the file "latest" and the checkpoints of dir.
func latest(dir string) (string, []Entry, error) {
	all, err := List(dir)
	if err != nil {
		return "", nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, LatestFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(all) == 0:
		return "", nil, fmt.Errorf("%s: %w", dir, ErrNone)
	case err != nil:
		return "", nil, fmt.Errorf("checkpoint: %w: %s", err, Tags(all))
	}
	return strings.TrimSpace(string(raw)), all, nil
}

// Find opens and verifies the last good checkpoint in dir: the one saved last of
// those that are complete and undamaged. warnings has a line for each one that was
// saved later, or that "latest" names, and cannot be used. Without any good one the
// error is or wraps ErrNone.
func Find(dir string) (f *Folder, warnings []string, err error) {
	tag, all, err := latest(dir)
	switch {
	case errors.Is(err, ErrNone):
		return nil, nil, err
	case err != nil:
		if all, err = List(dir); err != nil {
			return nil, nil, err
		}
	case !slices.ContainsFunc(all, func(e Entry) bool { return e.Tag == tag }):
		warnings = append(warnings, fmt.Sprintf("%s names %q, which is missing", filepath.Join(dir, LatestFile), tag))
	}
	for _, e := range all {
		if e.Err != nil { // its place in the order is not known
			warnings = append(warnings, e.Err.Error())
			continue
		}
		if f == nil {
			if f, err = OpenVerified(e.Path); err != nil {
				warnings = append(warnings, err.Error())
			}
		}
	}
	if f == nil {
		return nil, warnings, fmt.Errorf("%s: %w that can be used: %s", dir, ErrNone, Tags(all))
	}
	return f, warnings, nil
}
