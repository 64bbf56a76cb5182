package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Series is one file of a CSV monitor, this one's or DeepSpeed's.
type Series struct {
	Name    string    // of the file, without .csv: Train_Samples_train_loss
	Samples []float64 // the first column, ascending
	Values  []float64
}

// Read reads every series below dir, by name. Headers may be repeated, as DeepSpeed
// does after a restart, and a last line may be unfinished; rows that go back in their
// first column replace those from there on, as a resumed run does. A folder without a
// series, and two files of one name, are errors.
func Read(dir string) (map[string]Series, error) {
	all := map[string]Series{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".csv" {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(raw), "step,") {
			return nil
		}
		s, err := parse(string(raw))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s.Name = strings.TrimSuffix(filepath.Base(path), ".csv")
		if _, twice := all[s.Name]; twice {
			return fmt.Errorf("%s: a second series of that name below %s: name the folder of one run", path, dir)
		}
		all[s.Name] = s
		return nil
	})
	if err == nil && len(all) == 0 {
		err = errors.New("no file below it begins with a line \"step,NAME\": is it the folder of a CSV monitor?")
	}
	if err != nil {
		return nil, fmt.Errorf("curves of %s: %w", dir, err)
	}
	return all, nil
}

func parse(text string) (Series, error) {
	var s Series
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		whole := strings.HasSuffix(line, "\n")
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "step,") {
			continue
		}
		x, y, ok := strings.Cut(line, ",")
		at, errX := strconv.ParseFloat(x, 64)
		value, errY := strconv.ParseFloat(y, 64)
		if !ok || errX != nil || errY != nil {
			if !whole {
				break // a line that was not finished
			}
			return s, fmt.Errorf("line %d: %q is not a row of two numbers", i+1, line)
		}
		for n := len(s.Samples); n > 0 && s.Samples[n-1] >= at; n-- {
			s.Samples, s.Values = s.Samples[:n-1], s.Values[:n-1]
		}
		s.Samples, s.Values = append(s.Samples, at), append(s.Values, value)
	}
	return s, nil
}
