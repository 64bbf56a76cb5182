package picture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// write makes the file at path from what fill writes: beside path under another
// name, synced, then renamed. After an error nothing is left of it, and a file
// that was at path is as it was.
func write(path string, fill func(io.Writer) error) error {
	temp := fmt.Sprintf("%s.%016x.tmp", path, rand.Uint64()) // random: others may write the same path
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	err = fillAndSync(f, fill)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error says what went wrong
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	return nil
}

func fillAndSync(f *os.File, fill func(io.Writer) error) error {
	b := bufio.NewWriter(f)
	if err := fill(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// syncFolder makes the rename itself durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// reason drops from a file error the name of the temporary file.
func reason(err error) error {
	var pe *os.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}
