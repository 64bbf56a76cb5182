package checkpoint

import (
	"io"
	"os"
	"path/filepath"
)

// FS is what a save asks of the file system. Its methods may be called from
// several goroutines, for different files.
type FS interface {
	// Mkdir makes a folder, with those above it; one that exists is no error.
	Mkdir(path string) error
	// Create makes a file that does not exist yet.
	Create(path string) (File, error)
	// Rename moves a file or folder; a file at to is replaced at once.
	Rename(from, to string) error
	// Remove deletes a file or a folder with all that is in it; that it does not
	// exist is no error.
	Remove(path string) error
	// SyncDir makes durable what was created, renamed and removed in a folder.
	SyncDir(path string) error
}

// File is a file that is being written. After Sync its content survives a loss of
// power.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// Disk is the file system of the machine.
type Disk struct{}

// Mkdir implements FS. New folders are synced into those above them.
func (d Disk) Mkdir(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := d.Mkdir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o777); err != nil && !os.IsExist(err) {
		return err
	}
	return d.SyncDir(parent)
}

// Create implements FS.
func (Disk) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// Rename implements FS.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (Disk) Remove(path string) error { return os.RemoveAll(path) }

// SyncDir implements FS.
func (Disk) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
