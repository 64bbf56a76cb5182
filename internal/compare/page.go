package compare

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed page.html
var page string

var pageTemplate = template.Must(template.New("page").Parse(page))

// most is how many points of a curve go into the page; others are thinned out, but
// never one that is not finite, nor the extreme ones of a stretch.
const most = 3000

// pageData is what the page shows.
type pageData struct {
	Title  string
	Runs   []pageRun
	Series []pageSeries
	Data   template.JS
}

type pageRun struct {
	Name, Dir string
	Notes     []string
}

type pageSeries struct {
	Name string
	Rows []pageRow
}

type pageRow struct{ Run, Rows, Last, Tail, Min, NotFinite, Differs string }

// WritePage writes the runs as one HTML page without any other file: the curves, raw
// and smoothed, and a table of facts for each series.
func WritePage(w io.Writer, title string, runs []*Run) error {
	d := pageData{Title: title}
	for _, r := range runs {
		d.Runs = append(d.Runs, pageRun{Name: r.Name, Dir: r.Dir, Notes: r.Notes})
	}
	curves := map[string]map[int][][2]any{}
	for _, name := range Names(runs) {
		s := pageSeries{Name: Title(name)}
		var first *Series
		curves[s.Name] = map[int][][2]any{}
		for i, r := range runs {
			series, ok := r.Series[name]
			if !ok {
				continue
			}
			s.Rows = append(s.Rows, describe(r.Name, Examine(series, first), first != nil))
			if first == nil {
				first = series
			}
			curves[s.Name][i] = thin(series)
		}
		d.Series = append(d.Series, s)
	}
	raw, err := json.Marshal(curves)
	if err != nil {
		return err
	}
	d.Data = template.JS(raw) // made by json.Marshal, which escapes < and >
	return pageTemplate.Execute(w, d)
}

// Title is a series' name for people: Train_Samples_grad_norm is "grad norm".
func Title(name string) string {
	for _, prefix := range []string{"Train_Samples_", "Eval_Samples_"} {
		name = strings.TrimPrefix(name, prefix)
	}
	return strings.ReplaceAll(name, "_", " ")
}

func describe(run string, f Facts, compared bool) pageRow {
	r := pageRow{Run: run, Rows: fmt.Sprint(f.Rows), Last: value(f.Last), Tail: value(f.Tail), Min: value(f.Min), NotFinite: "none", Differs: "the first"}
	if !math.IsNaN(f.NotFinite) {
		r.NotFinite = fmt.Sprintf("at %g", f.NotFinite)
	}
	switch {
	case compared && f.Compared == 0:
		r.Differs = "no step in common"
	case compared && math.IsNaN(f.Differs):
		r.Differs = fmt.Sprintf("same in %d rows", f.Compared)
	case compared:
		r.Differs = fmt.Sprintf("differs from %g", f.Differs)
	}
	return r
}

func value(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.5g", v)
}

// thin returns the points that the page draws; JSON has null where a value is not
// finite.
func thin(s *Series) [][2]any {
	every := max(1, (2*len(s.X)+most-1)/most) // two of each stretch: the lowest and the highest
	var out [][2]any
	add := func(i int) {
		var y any
		if v := s.Y[i]; !math.IsNaN(v) && !math.IsInf(v, 0) {
			y = v
		}
		out = append(out, [2]any{s.X[i], y})
	}
	for lo := 0; lo < len(s.X); lo += every {
		hi := min(lo+every, len(s.X))
		low, high, broken := lo, lo, -1
		for i := lo; i < hi; i++ {
			switch y := s.Y[i]; {
			case math.IsNaN(y) || math.IsInf(y, 0):
				broken = i
			case !(s.Y[low] <= y):
				low = i
			case !(s.Y[high] >= y):
				high = i
			}
		}
		last := -1
		for _, i := range sorted(low, high, broken) {
			if i > last {
				add(i)
				last = i
			}
		}
	}
	return out
}

func sorted(a, b, c int) [3]int {
	return [3]int{min(a, b, c), max(min(a, b), min(max(a, b), c)), max(a, b, c)}
}
