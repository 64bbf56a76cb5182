package monitor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func start(t *testing.T, o Options) *CSV {
	t.Helper()
	m, err := Open(o)
	must(t, err)
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// files returns name and content of everything below dir.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(rel)] = string(b)
		return err
	}))
	return all
}

func wantFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := files(t, dir)
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%s is %q, want %q", name, got[name], content)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("unexpected file %s", name)
	}
}

func TestLayout(t *testing.T) {
	dir := t.TempDir()
	m := start(t, Options{Path: filepath.Join(dir, "new", "logs"), JobName: "my job"})
	must(t, m.Write(8, Event{TrainLoss, 2}, Event{LR, 1e-3}))
	must(t, m.Write(16, Event{TrainLoss, 3}, Event{"Train/Samples/train loss, smoothed", 0.1}, Event{"plain", 7}))
	must(t, m.Close())
	wantFiles(t, dir, map[string]string{
		"new/logs/my job/Train_Samples_train_loss.csv":           "step,train_loss\n8,2\n16,3\n",
		"new/logs/my job/Train_Samples_lr.csv":                   "step,lr\n8,0.001\n",
		"new/logs/my job/Train_Samples_train_loss,_smoothed.csv": "step,\"train loss, smoothed\"\n16,0.1\n",
		"new/logs/my job/plain.csv":                              "step,plain\n16,7\n",
	})
}

// TestRowsAreThereAtOnce: a run that is killed has lost nothing.
func TestRowsAreThereAtOnce(t *testing.T) {
	dir := t.TempDir()
	m := start(t, Options{Path: dir, JobName: "j"})
	defer m.Close()
	want := "step,x\n"
	for step := 1; step < 20; step++ {
		must(t, m.Write(4*step, Event{"x", float64(step)}))
		want += fmt.Sprintf("%d,%d\n", 4*step, step)
		wantFiles(t, dir, map[string]string{"j/x.csv": want})
	}
}

func TestNumbers(t *testing.T) {
	for want, v := range map[string]float64{
		"nan": math.NaN(), "inf": math.Inf(1), "-inf": math.Inf(-1), "0": 0, "0.1": 0.1,
		"1e-07": 1e-7, "65536": 65536, "0.30000000000000004": math.Nextafter(0.3, 1), "1e+21": 1e21,
	} {
		if got := format(v); got != want {
			t.Errorf("%v is written as %q, want %q", v, got, want)
		}
	}
}

func TestResume(t *testing.T) {
	const name = "Train/Samples/train_loss"
	dir := t.TempDir()
	run := func(from, to int) {
		m := start(t, Options{Path: dir, JobName: "j", From: 8 * from})
		for s := from + 1; s <= to; s++ {
			must(t, m.Write(8*s, Event{name, float64(s)}))
			if s == 3 {
				must(t, m.Write(8*s, Event{"eval", 9}))
			}
		}
		must(t, m.Close())
	}
	run(0, 3)
	run(2, 4)
	wantFiles(t, dir, map[string]string{
		"j/Train_Samples_train_loss.csv": "step,train_loss\n8,1\n16,2\n24,3\n32,4\n",
		"j/eval.csv":                     "step,eval\n24,9\n",
	})
	run(2, 2) // only drops rows; a series without rows has no file
	wantFiles(t, dir, map[string]string{"j/Train_Samples_train_loss.csv": "step,train_loss\n8,1\n16,2\n"})
	run(0, 1)
	wantFiles(t, dir, map[string]string{"j/Train_Samples_train_loss.csv": "step,train_loss\n8,1\n"})
}

// TestFilesOfOthers: what DeepSpeed leaves (a header for each process, CRLF), a
// row that was not finished, and files that are no series.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) { must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)) }
	put("a.csv", "step,a\r\n8,1.5\r\nstep,a\r\n\r\n16,2.5\r\n24,3.5\r\n")
	put("b.csv", "step,b\n8,1\n1")
	put("deepspeed_config.csv", "key,value\nstage,2\n")
	put("notes.txt", "step,by step\n")
	put("empty.csv", "")
	m := start(t, Options{Path: dir, JobName: ".", From: 16})
	must(t, m.Write(24, Event{"a", 4}, Event{"b", 4}, Event{"empty", 4}))
	must(t, m.Close())
	wantFiles(t, dir, map[string]string{
		"a.csv": "step,a\r\n8,1.5\r\n16,2.5\r\n24,4\n", "b.csv": "step,b\n8,1\n24,4\n", "empty.csv": "step,empty\n24,4\n",
		"deepspeed_config.csv": "key,value\nstage,2\n", "notes.txt": "step,by step\n",
	})
	if info, err := os.Stat(filepath.Join(dir, "a.csv")); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode of a file that was rewritten: %v, %v", info.Mode(), err)
	}
	put("c.csv", "step,c\n8,1\neight,1\n")
	_, err := Open(Options{Path: dir, JobName: "."})
	wantError(t, err, "c.csv", "line 3", `"eight,1"`, "csv_monitor.job_name")
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range append(parts, "csv_monitor") {
		if !strings.Contains(err.Error(), p) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q lacks %q, or has several lines", err, p)
		}
	}
}

func TestUnwritableAtStart(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o666))
	_, err := Open(Options{Path: filepath.Join(dir, "file"), JobName: "j"})
	wantError(t, err, "file", "not a directory", "csv_monitor.output_path")
	if os.Geteuid() > 0 { // root may write everywhere
		must(t, os.Chmod(dir, 0o500))
		_, err := Open(Options{Path: dir, JobName: "j"})
		wantError(t, err, dir, "permission denied", "csv_monitor.output_path")
		must(t, os.Chmod(dir, 0o700))
	}
	if runtime.GOOS == "linux" {
		_, err := Open(Options{Path: "/proc/self", JobName: "fdinfo"}) // root may not write there
		wantError(t, err, "/proc/self/fdinfo")
	}
	m := start(t, Options{Path: dir, JobName: "j"})
	must(t, os.Mkdir(filepath.Join(dir, "j", "x.csv"), 0o777))
	wantError(t, m.Write(1, Event{"x", 1}), "x.csv", "is a directory")
	must(t, m.Close())
	if got := files(t, filepath.Join(dir, "j")); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Logf("no device to write to that is full: %v", err)
		return
	}
	dir := t.TempDir()
	must(t, os.Symlink("/dev/full", filepath.Join(dir, "x.csv")))
	m := start(t, Options{Path: dir, JobName: "."})
	defer m.Close()
	wantError(t, m.Write(8, Event{"y", 1}, Event{"x", 1}), "x.csv", "no space left")
}

func TestRowsAscend(t *testing.T) {
	dir := t.TempDir()
	m := start(t, Options{Path: dir, JobName: "j", From: 4})
	defer m.Close()
	must(t, m.Write(8, Event{"x", 1}))
	wantError(t, m.Write(8, Event{"x", 2}), `"x"`, "8 samples")
	wantError(t, m.Write(7, Event{"x", 2}), "now one at 7")
	must(t, m.Write(8, Event{"y", 2}))
	must(t, m.Write(9, Event{"x", 3}))
	wantFiles(t, dir, map[string]string{"j/x.csv": "step,x\n8,1\n9,3\n", "j/y.csv": "step,y\n8,2\n"})
}

func TestNamesThatMeet(t *testing.T) {
	m := start(t, Options{Path: t.TempDir(), JobName: "j"})
	defer m.Close()
	must(t, m.Write(1, Event{"a b", 1}))
	wantError(t, m.Write(2, Event{"a/b", 1}), `"a b"`, `"a/b"`, "a_b.csv")
}

// TestHalfARowIsCutOff: what a failed write left is not there afterwards.
func TestHalfARowIsCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.csv")
	must(t, os.WriteFile(path, []byte("step,x\n8,1\n16,2"), 0o666)) // the last row as a full disk leaves it
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	s := &series{name: "x", file: f, size: 11}
	s.cut()
	must(t, f.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	if got := strings.Split(string(b), "\n"); !slices.Equal(got, []string{"step,x", "8,1", ""}) {
		t.Errorf("%q is left", got)
	}
}
