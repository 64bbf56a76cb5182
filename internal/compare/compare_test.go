package compare

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files writes files below a new folder.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := files(t, map[string]string{
		// DeepSpeed's: a header for each process, rows again after a resume, tensors.
		"ds/job/Train_Samples_train_loss.csv": "step,train_loss\n8,1.5\n16,tensor(0.75, device='cuda:0')\n24,0.5\nstep,train_loss\n16,0.25\n24,nan\n",
		"ds/job/Train_Samples_lr.csv":         "\ufeffstep,lr\r\n8,1e-3\r\n\r\n16,inf\r\n",
		"ds/job/other.csv":                    "name,age\na,3\n",
		"ours/csv/zero2/a.csv":                "step,a\n",
	})
	runs, err := Read([]string{filepath.Join(dir, "ds"), filepath.Join(dir, "ours")})
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 2 || runs[0].Name != "job" || runs[1].Name != "ours" {
		t.Fatalf("runs %+v", runs)
	}
	loss := runs[0].Series["Train_Samples_train_loss"]
	if !slices.Equal(loss.X, []float64{8, 16, 24}) || loss.Y[0] != 1.5 || loss.Y[1] != 0.25 || !math.IsNaN(loss.Y[2]) {
		t.Errorf("loss %+v", loss)
	}
	if lr := runs[0].Series["Train_Samples_lr"]; len(lr.X) != 2 || !math.IsInf(lr.Y[1], 1) {
		t.Errorf("lr %+v", lr)
	}
	if notes := strings.Join(runs[0].Notes, "\n"); !strings.Contains(notes, "2 headers") || !strings.Contains(notes, "2 rows were replaced") {
		t.Errorf("notes %q", notes)
	}
	if _, other := runs[0].Series["other"]; other {
		t.Error("a table that is no series was taken for one")
	}
	if names := Names(runs); !slices.Equal(names, []string{"Train_Samples_train_loss", "Train_Samples_lr", "a"}) && names[0] != "Train_Samples_train_loss" {
		t.Errorf("order %v", names)
	}
}

func TestNames(t *testing.T) {
	dir := files(t, map[string]string{"x/csv/job/a.csv": "step,a\n", "y/csv/job/a.csv": "step,a\n", "y/csv/second/a.csv": "step,a\n"})
	runs, err := Read([]string{filepath.Join(dir, "x"), filepath.Join(dir, "y")})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{runs[0].Name, runs[1].Name, runs[2].Name}
	if !slices.Equal(got, []string{"x/csv/job", "y/csv/job", "y/csv/second"}) {
		t.Errorf("names %q", got)
	}
}

func TestReadErrors(t *testing.T) {
	for want, content := range map[string]string{
		"line 3": "step,a\n1,2\n3\n", `"x" is not a number`: "step,a\n1,x\n", "the step is NaN": "step,a\nnan,1\n",
	} {
		dir := files(t, map[string]string{"a.csv": content})
		if _, err := Read([]string{dir}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a.csv") {
			t.Errorf("%q: error %v, want %q", content, err, want)
		}
	}
	if _, err := Read([]string{t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no CSV series") {
		t.Errorf("empty folder: %v", err)
	}
	if _, err := Read([]string{"/none/such"}); err == nil || !strings.Contains(err.Error(), "no such folder") {
		t.Errorf("missing folder: %v", err)
	}
}

func TestExamine(t *testing.T) {
	nan := math.NaN()
	first := &Series{X: []float64{8, 16, 24, 32}, Y: []float64{4, 2, nan, 1}}
	f := Examine(&Series{X: []float64{16, 24, 32, 40}, Y: []float64{2, nan, 1.5, 3}}, first)
	if f.Rows != 4 || f.Last != 3 || f.Tail != 3 || f.Min != 1.5 || f.NotFinite != 24 || f.Differs != 32 || f.Compared != 3 {
		t.Errorf("%+v", f)
	}
	f = Examine(first, first)
	if !math.IsNaN(f.Differs) || f.Compared != 4 {
		t.Errorf("the same series: %+v", f)
	}
	if f := Examine(&Series{}, first); !math.IsNaN(f.Tail) || f.Rows != 0 || f.Compared != 0 {
		t.Errorf("an empty series: %+v", f)
	}
}

func TestThin(t *testing.T) {
	s := &Series{}
	for i := range 100_000 {
		s.X, s.Y = append(s.X, float64(i)), append(s.Y, math.Sin(float64(i)))
	}
	s.Y[31_415], s.Y[27_182], s.Y[16_180] = 50, -50, math.Inf(1)
	high, low, null, last := false, false, false, -1.0
	points := thin(s)
	for _, p := range points {
		if x := p[0].(float64); x <= last {
			t.Fatalf("step %v after %v", x, last)
		} else {
			last = x
		}
		null = null || p[1] == nil
		high, low = high || p[1] == 50.0, low || p[1] == -50.0
	}
	if !high || !low || !null || len(points) > most*3/2 {
		t.Errorf("%d points; highest kept: %v, lowest: %v, the one that is not finite: %v", len(points), high, low, null)
	}
	if got := thin(&Series{X: []float64{1, 2}, Y: []float64{3, 4}}); len(got) != 2 {
		t.Errorf("a short curve has %d points, want both", len(got))
	}
}

func TestPage(t *testing.T) {
	dir := files(t, map[string]string{"a/l.csv": "step,l\n1,2\n2,nan\n", "b/l.csv": "step,l\n1,3\n"})
	runs, err := Read([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	runs[0].Name = "</script><b>"
	var b strings.Builder
	if err := WritePage(&b, "two & runs", runs); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"two &amp; runs", "[[1,2],[2,null]]", "differs from 1", "at 2"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, no := range []string{"</script><b>", "http://", "https://", "src="} {
		if strings.Contains(page, no) {
			t.Errorf("the page holds %q", no)
		}
	}
}
