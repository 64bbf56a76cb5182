package monitor

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/events; then run testdata/read_events.py")

// writeFixture writes the event files of a run of three steps that was resumed after
// the second, at fixed times.
func writeFixture(t *testing.T, dir string) {
	t.Helper()
	at := time.Unix(1_700_000_000, 250_000_000)
	for _, run := range []struct {
		from  int
		steps []int
	}{{0, []int{8, 16, 24}}, {16, []int{24, 32}}} {
		now := func() time.Time { return at }
		tb, err := openTensorBoard(Options{Path: dir, JobName: "job", From: run.from}, now, "1")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range run.steps {
			at = at.Add(time.Second)
			value := float64(n) + 0.5 + float64(run.from)
			if err := tb.Write(n, Event{TrainLoss, value}, Event{"Train/Samples/grad_norm", math.Inf(1)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tb.Close(); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Minute)
	}
}

// TestTensorBoardReadsOurFiles compares the files with stored ones, of which
// TensorBoard's own reader gave back what testdata/events.json says.
func TestTensorBoardReadsOurFiles(t *testing.T) {
	const stored = "testdata/events"
	dir := t.TempDir()
	if *update {
		dir = stored
		if err := os.RemoveAll(stored); err != nil {
			t.Fatal(err)
		}
	}
	writeFixture(t, dir)
	if *update {
		renameHost(t, stored)
		return
	}
	renameHost(t, dir)
	files, err := filepath.Glob(filepath.Join(stored, "job", "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%d stored files, %v", len(files), err)
	}
	for _, path := range files {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "job", filepath.Base(path)))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from the stored one", filepath.Base(path))
		}
	}
	raw, err := os.ReadFile("testdata/events.json")
	if err != nil {
		t.Fatal(err)
	}
	var read map[string][][2]any
	if err := json.Unmarshal(raw, &read); err != nil {
		t.Fatal(err)
	}
	// The row at 24 samples is that of the second run, the only one after it is 32.
	want := [][2]any{{8.0, 8.5}, {16.0, 16.5}, {24.0, 40.5}, {32.0, 48.5}}
	if len(read[TrainLoss]) != len(want) {
		t.Fatalf("TensorBoard read %v", read[TrainLoss])
	}
	for i, row := range want {
		if read[TrainLoss][i] != row {
			t.Errorf("TensorBoard read %v, want %v", read[TrainLoss][i], row)
		}
	}
	if n := read["Train/Samples/grad_norm"]; len(n) != 4 || n[0][1] != "inf" {
		t.Errorf("TensorBoard read %v of a series of infinities", n)
	}
}

// renameHost takes this machine's name out of the names of event files.
func renameHost(t *testing.T, dir string) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	files, _ := filepath.Glob(filepath.Join(dir, "job", "*"))
	for _, f := range files {
		name := strings.Replace(filepath.Base(f), "."+host+".", ".host.", 1)
		if err := os.Rename(f, filepath.Join(dir, "job", name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTensorBoardSaysWhereItCannotWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := OpenTensorBoard(Options{Path: file, JobName: "job"})
	for _, want := range []string{"tensorboard.output_path", file} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}
