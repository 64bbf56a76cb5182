//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes sure that no other process trains in the run's folder: two would delete
// each other's checkpoints. The lock ends with the file, so a killed process leaves
// none behind.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("output folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("output folder %s: another process is training there: wait until it has ended, or choose another folder with -out", dir), f.Close())
	case errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOLCK):
		return f, nil // a file system without locks
	case err != nil:
		return nil, errors.Join(fmt.Errorf("output folder %s: lock: %w", dir, err), f.Close())
	}
	return f, nil
}
