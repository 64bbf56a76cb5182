package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// breaking is a disk on which operation number n of a kind fails, from 0.
type breaking struct {
	Disk
	kind   string // mkdir, create, write, short, sync, close, rename, remove, syncdir
	n      int
	count  *atomic.Int64
	failed *atomic.Bool
}

var errDisk = syscall.ENOSPC

func (b breaking) hit(kind string) error {
	if kind != b.kind || int(b.count.Add(1))-1 != b.n {
		return nil
	}
	b.failed.Store(true)
	return errDisk
}

func (b breaking) Mkdir(path string) error {
	if err := b.hit("mkdir"); err != nil {
		return err
	}
	return b.Disk.Mkdir(path)
}

func (b breaking) Create(path string) (File, error) {
	if err := b.hit("create"); err != nil {
		return nil, err
	}
	f, err := b.Disk.Create(path)
	return brokenFile{f, b}, err
}

func (b breaking) Rename(from, to string) error {
	if err := b.hit("rename"); err != nil {
		return err
	}
	return b.Disk.Rename(from, to)
}

func (b breaking) Remove(path string) error {
	if err := b.hit("remove"); err != nil {
		return err
	}
	return b.Disk.Remove(path)
}

func (b breaking) SyncDir(path string) error {
	if err := b.hit("syncdir"); err != nil {
		return err
	}
	return b.Disk.SyncDir(path)
}

type brokenFile struct {
	File
	b breaking
}

func (f brokenFile) Write(p []byte) (int, error) {
	if err := f.b.hit("short"); err != nil { // half is written, and no error
		return f.File.Write(p[:len(p)/2])
	}
	if err := f.b.hit("write"); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f brokenFile) Sync() error {
	if err := f.b.hit("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f brokenFile) Close() error {
	return errors.Join(f.File.Close(), f.b.hit("close"))
}

// TestEveryOperationMayFail lets every single write, sync, rename and so on of a save
// fail in turn. The save is an error on all ranks or has succeeded; the last good
// checkpoint can be loaded; the training goes on with the same bits and its next save
// succeeds.
func TestEveryOperationMayFail(t *testing.T) {
	s := setup{world: 2, stage: 2, bucket: 64, format: "bf16"}
	want := s.outcome(t, 3)
	for _, kind := range []string{"mkdir", "create", "write", "short", "sync", "close", "rename", "remove", "syncdir"} {
		for _, tag := range []string{StepTag(2), StepTag(1)} { // a new one, and one again
			n := 0
			for failed := true; failed; n++ {
				if n > 200 {
					t.Fatalf("%s: no end of operations", kind)
				}
				failed = s.breakOnce(t, kind, tag, n, want)
			}
			if n < 2 {
				t.Errorf("no %s of a save of %s failed: the test looks at nothing", kind, tag)
			}
		}
	}
}

// breakOnce reports whether there was an operation number n.
func (s setup) breakOnce(t *testing.T, kind, tag string, n int, want string) bool {
	t.Helper()
	dir := t.TempDir()
	var failed atomic.Bool
	var count atomic.Int64
	what := fmt.Sprintf("%s number %d of saving %s", kind, n, tag)
	var saved atomic.Bool
	s.must(t, func(r *rank) error {
		if err := r.steps(1); err != nil {
			return err
		}
		if err := NewSaver(r.opt, r.c, Options{Dir: dir}).Save(r.ctx, StepTag(1)); err != nil {
			return err
		}
		if err := r.steps(2); err != nil {
			return err
		}
		err := NewSaver(r.opt, r.c, Options{Dir: dir, Keep: 2, FS: breaking{kind: kind, n: n, count: &count, failed: &failed}}).Save(r.ctx, tag)
		if err == nil {
			saved.Store(true)
		} else if !strings.Contains(err.Error(), tag) || !strings.Contains(err.Error(), errDisk.Error()) && !strings.Contains(err.Error(), "short write") {
			return fmt.Errorf("error %w: want the tag and the cause", err)
		}
		return nil
	})
	if failed.Load() && kind == "short" && saved.Load() {
		t.Errorf("%s: a short write was taken for a success", what)
	}
	f, warnings, err := Find(dir)
	if err != nil {
		t.Errorf("%s: %v (%q)", what, err, warnings)
		return failed.Load()
	}
	defer f.Close()
	if saved.Load() && f.Step() != 2 {
		t.Errorf("%s: saved, and found step %d", what, f.Step())
	}
	s.must(t, func(r *rank) error {
		if err := f.Load(r.ctx, r.opt, r.c); err != nil {
			return err
		}
		if err := r.steps(3); err != nil {
			return err
		}
		if got, err := r.fingerprint(); err != nil || got != want {
			return fmt.Errorf("%s: resumed %s, want %s, %w", what, got, want, err)
		}
		return NewSaver(r.opt, r.c, Options{Dir: dir, Keep: 2}).Save(r.ctx, StepTag(3))
	})
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), savingPrefix) {
			t.Errorf("%s: after the next save %s is still there", what, file.Name())
		}
	}
	return failed.Load()
}

// TestDamageIsFound damages every file of the newest checkpoint in several ways. A
// strict open says which file and what is wrong; Find goes back to the one before,
// and says so.
func TestDamageIsFound(t *testing.T) {
	s := setup{world: 2, stage: 2, bucket: 64, format: "bf16", ema: true}
	dir := t.TempDir()
	s.save(t, dir, 1)
	s.save(t, dir, 2, Attachment{Name: "state.json", Data: []byte(`{"a": 12345678}`)})
	newest := filepath.Join(dir, StepTag(2))
	files, err := os.ReadDir(newest)
	if err != nil || len(files) != 6 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		path := filepath.Join(newest, file.Name())
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string]func() error{
			"missing":   func() error { return os.Remove(path) },
			"empty":     func() error { return os.WriteFile(path, nil, 0o666) },
			"cut":       func() error { return os.WriteFile(path, good[:len(good)-1], 0o666) },
			"cut short": func() error { return os.WriteFile(path, good[:len(good)/2], 0o666) },
			"longer":    func() error { return os.WriteFile(path, append(good[:len(good):len(good)], 0), 0o666) },
			"a folder":  func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o777)) },
		}
		for _, at := range []int{0, 9, len(good) / 3, len(good) - 5} {
			damages[fmt.Sprintf("bit at byte %d", at)] = func() error {
				bad := append([]byte(nil), good...)
				bad[at] ^= 0x10
				return os.WriteFile(path, bad, 0o666)
			}
		}
		for name, damage := range damages {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			if f, err := Latest(dir); err == nil || !strings.Contains(err.Error(), file.Name()) {
				t.Errorf("%s %s: strict open: error %v", file.Name(), name, err)
				if err == nil {
					f.Close()
				}
			}
			f, warnings, err := Find(dir)
			switch {
			case err != nil:
				t.Errorf("%s %s: %v", file.Name(), name, err)
			case f.Step() != 1 || len(warnings) != 1 || !strings.Contains(warnings[0], file.Name()):
				t.Errorf("%s %s: found step %d, warnings %q", file.Name(), name, f.Step(), warnings)
			}
			if f != nil {
				f.Close()
			}
			if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, good, 0o666)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLatestIsDamaged: without a usable "latest" the order of the saves decides.
func TestLatestIsDamaged(t *testing.T) {
	s := setup{world: 1, stage: 0, bucket: 64, format: "fp32"}
	dir := t.TempDir()
	if _, _, err := Find(dir); !errors.Is(err, ErrNone) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, _, err := Find(filepath.Join(dir, "nowhere")); !errors.Is(err, ErrNone) {
		t.Errorf("no folder: %v", err)
	}
	s.save(t, dir, 1)
	s.save(t, dir, 2)
	for name, content := range map[string]string{"points nowhere": "step-000009", "empty": "", "leads out": "../../etc"} {
		if err := os.WriteFile(filepath.Join(dir, LatestFile), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if f, err := Latest(dir); err == nil || !strings.Contains(err.Error(), "step-000002") {
			t.Errorf("%s: strict: error %v does not list what is there", name, err)
			if f != nil {
				f.Close()
			}
		}
		f, warnings, err := Find(dir)
		if err != nil || f.Step() != 2 || len(warnings) != 1 {
			t.Fatalf("%s: %v, warnings %q", name, err, warnings)
		}
		f.Close()
	}
	_, err := Tagged(dir, "best")
	if err == nil || !strings.Contains(err.Error(), "there are step-000002, step-000001") {
		t.Errorf("a wrong tag: error %v", err)
	}
}

// TestKeep: older checkpoints with step tags are deleted after a save, others and
// damaged ones are not, and damaged ones do not count.
func TestKeep(t *testing.T) {
	s := setup{world: 2, stage: 1, bucket: 64, format: "fp32"}
	dir := t.TempDir()
	tags := func() string {
		all, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		return Tags(all)
	}
	save := func(r *rank, step int, tag string) error {
		if err := r.steps(step); err != nil {
			return err
		}
		return NewSaver(r.opt, r.c, Options{Dir: dir, Keep: 2}).Save(r.ctx, tag)
	}
	s.must(t, func(r *rank) error {
		return errors.Join(save(r, 1, StepTag(1)), save(r, 1, "best"), save(r, 2, StepTag(2)), save(r, 3, StepTag(3)))
	})
	if got := tags(); got != "there are step-000003, step-000002, best" {
		t.Errorf("kept: %s", got)
	}
	// Steps 2 and 3 are damaged: they stay, and the good ones are counted without them.
	for _, step := range []int{2, 3} {
		if err := os.Remove(filepath.Join(dir, StepTag(step), ManifestFile)); err != nil {
			t.Fatal(err)
		}
	}
	s.must(t, func(r *rank) error {
		return errors.Join(save(r, 4, StepTag(4)), save(r, 5, StepTag(5)))
	})
	if got := tags(); got != "there are step-000005, step-000004, best, step-000002 (damaged), step-000003 (damaged)" {
		t.Errorf("kept: %s", got)
	}
}
