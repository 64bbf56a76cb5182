package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// publish makes the checkpoint appear: rank 0, when the files of all ranks are
// written and synced. The order is what makes it safe: the manifest after the
// files, the name after the manifest, "latest" after the name, and only then are
// older ones deleted.
func (p *Pending) publish(all []report) error {
	fs, dir := p.s.opts.FS, p.s.opts.Dir
	entries, err := List(dir)
	if err != nil {
		return err
	}
	m := p.head
	for _, e := range entries {
		m.Serial = max(m.Serial, e.serial())
	}
	m.Serial++
	for _, r := range all {
		m.Files = append(m.Files, r.Files...)
	}
	if err := p.visible(m.Files); err != nil {
		return err
	}
	raw, err := m.encode()
	if err != nil {
		return err
	}
	if err := p.s.put(filepath.Join(p.temp, ManifestFile), raw); err != nil {
		return err
	}
	if err := fs.SyncDir(p.temp); err != nil {
		return err
	}
	old, err := p.rename()
	if err != nil {
		return err
	}
	if err := p.point(); err != nil {
		return err
	}
	return p.tidy(old, entries)
}

// visible checks that the files of all ranks are where this one looks for them: ranks
// on several machines need one file system.
func (p *Pending) visible(files []FileInfo) error {
	for _, f := range files {
		path := filepath.Join(p.temp, f.Name)
		if info, err := os.Stat(path); err != nil || info.Size() != f.Bytes {
			return fmt.Errorf("a rank has written %s with %d bytes, and this one does not see that: %w", path, f.Bytes, errors.Join(err, errors.New("the folder of checkpoints must be the same on all machines, on a shared file system")))
		}
	}
	return nil
}

// rename gives the folder its name. A checkpoint that has the tag already is put
// aside under a name where List still finds it, and back when the second rename
// fails. It returns the path of what was put aside, "" without one.
func (p *Pending) rename() (old string, err error) {
	fs, dir := p.s.opts.FS, p.s.opts.Dir
	path := filepath.Join(dir, p.tag)
	if _, err := os.Lstat(path); err == nil {
		old = filepath.Join(dir, oldPrefix+p.tag)
		if err := fs.Remove(old); err != nil {
			return "", err
		}
		if err := fs.Rename(path, old); err != nil {
			return "", err
		}
	}
	if err := fs.Rename(p.temp, path); err != nil {
		if old != "" {
			err = errors.Join(err, fs.Rename(old, path))
		}
		return "", err
	}
	return old, fs.SyncDir(dir)
}

// point writes the tag into "latest".
func (p *Pending) point() error {
	fs, dir := p.s.opts.FS, p.s.opts.Dir
	temp := filepath.Join(dir, savingPrefix+LatestFile)
	if err := fs.Remove(temp); err != nil {
		return err
	}
	if err := p.s.put(temp, []byte(p.tag+"\n")); err != nil {
		return err
	}
	if err := fs.Rename(temp, filepath.Join(dir, LatestFile)); err != nil {
		return err
	}
	return fs.SyncDir(dir)
}

// tidy deletes what the new checkpoint makes useless: the one it replaces, folders
// of saves that were killed, and those beyond the limit. The checkpoints that count
// are complete ones, so damaged ones are never kept in place of a good one; nor are
// they deleted, because someone may want to look at them.
func (p *Pending) tidy(old string, entries []Entry) error {
	fs, dir := p.s.opts.FS, p.s.opts.Dir
	var errs []error
	remove := func(path string) {
		if err := fs.Remove(path); err != nil {
			errs = append(errs, fmt.Errorf("the new checkpoint is good, but an older one could not be deleted: %w", err))
		}
	}
	if old != "" {
		remove(old)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), savingPrefix) {
			remove(filepath.Join(dir, f.Name()))
		}
	}
	kept := 1 // the new one
	for _, e := range entries {
		if keep := p.s.opts.Keep; keep > 0 && e.Err == nil && e.Tag != p.tag && isStepTag(e.Tag) {
			if kept++; kept > keep {
				remove(e.Path)
			}
		}
	}
	return errors.Join(errs...)
}

// put writes a file of rank 0 and syncs it.
func (s *Saver) put(path string, data []byte) error {
	f, err := s.opts.FS.Create(path)
	if err != nil {
		return err
	}
	n, err := f.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// checkAttachments refuses names that a checkpoint has itself.
func checkAttachments(attached []Attachment) error {
	var seen []string
	for _, a := range attached {
		err := CheckTag(a.Name)
		switch {
		case err != nil:
			return fmt.Errorf("attachment: %w", err)
		case a.Name == ManifestFile, strings.HasPrefix(a.Name, weightsName), strings.HasPrefix(a.Name, optimizerName), slices.Contains(seen, a.Name):
			return fmt.Errorf("attachment %q: the name is taken", a.Name)
		}
		seen = append(seen, a.Name)
	}
	return nil
}
