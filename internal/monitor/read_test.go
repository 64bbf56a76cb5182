package monitor

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead reads what Write wrote, and what DeepSpeed writes: repeated headers, rows of
// a run that was resumed from an earlier point, nan, a line that was cut off.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	m, err := Open(Options{Path: dir, JobName: "job"})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range []float64{3, math.Inf(1), 0.1} {
		if err := m.Write(8*(i+1), Event{TrainLoss, v}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := Read(dir)
	if s := all["Train_Samples_train_loss"]; err != nil || len(s.Values) != 3 || s.Samples[2] != 24 || s.Values[0] != 3 || !math.IsInf(s.Values[1], 1) || s.Values[2] != 0.1 {
		t.Errorf("%+v, %v", all, err)
	}

	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "job", "Train_Samples_lr.csv"), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("step,lr\r\n8,1e-3\r\n16,nan\r\n24,3e-3\r\n\r\nstep,lr\r\n16,5e-3\r\n24,")
	all, err = Read(filepath.Join(dir, "job"))
	if s := all["Train_Samples_lr"]; err != nil || len(s.Values) != 2 || s.Values[1] != 5e-3 || s.Samples[1] != 16 {
		t.Errorf("%+v, %v", s, err)
	}
	write("step,lr\n8,x\n")
	if _, err = Read(dir); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a row that is none: %v", err)
	}
	write("other\n")
	if err := os.MkdirAll(filepath.Join(dir, "second"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(filepath.Join(dir, "second")); err == nil || !strings.Contains(err.Error(), "CSV monitor") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "second", "Train_Samples_train_loss.csv"), []byte("step,train_loss\n8,1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "a second series") {
		t.Errorf("two runs in one folder: %v", err)
	}
}
