package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Whatever watches a training leaves its bits alone.
func TestWatchedTraining(t *testing.T) {
	defer goleak.VerifyNone(t)
	want := trainTiny(t, "-steps", "4", "-world", "2")
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{"-config", writeConfig(t, "")}, tiny...)
	code, stdout, stderr := command(append(args, "-out", out, "-steps", "4", "-world", "2", "-set", "steps_per_print=2", "-set", "zero_optimization.stage=2",
		"-set", "wall_clock_breakdown=true", "-set", "tensorboard.enabled=true", "-set", "tensorboard.job_name=job",
		"-set", "comms_logger.enabled=true", "-set", "comms_logger.verbose=true", "-set", "comms_logger.prof_all=false",
		"-set", `comms_logger.prof_ops=["reduce_scatter"]`)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if a, b := curve(t, want), curve(t, out); a != b {
		t.Errorf("curves\n%s\nunwatched:\n%s", b, a)
	}
	for _, rank := range []string{"rank 0", "rank 1"} {
		re := regexp.MustCompile(`step 4: ` + rank + ` time \(ms\) \| data \d+\.\d \| forward \d+\.\d \| backward \d+\.\d \| reduce \d+\.\d \| step \d+\.\d \| gather \d+\.\d`)
		if !re.MatchString(stdout) {
			t.Errorf("no times of %s in\n%s", rank, stdout)
		}
	}
	if !regexp.MustCompile(`reduce_scatter +gradient bucket +\d+ +\d+ `).MatchString(stdout) || strings.Contains(stdout, "all_gather  ") {
		t.Errorf("no table of reduce_scatter alone in\n%s", stdout)
	}
	if lines := strings.Count(read(t, filepath.Join(out, "comms.log")), "comm op: reduce_scatter | for: gradient bucket | step: "); lines < 4 {
		t.Errorf("comms.log has %d reductions in 4 steps", lines)
	}
	forward := strings.Fields(read(t, filepath.Join(out, "csv", "job", "Train_Samples_elapsed_time_ms_forward.csv")))
	if len(forward) != 5 {
		t.Errorf("times of the forward: %q", forward)
	}
	if events, _ := filepath.Glob(filepath.Join(out, "tensorboard", "job", "*tfevents*")); len(events) != 1 {
		t.Errorf("event files: %q", events)
	}
}

// TestLivePage asks the page of a running training for its data.
func TestLivePage(t *testing.T) {
	defer goleak.VerifyNone(t)
	defer http.DefaultClient.CloseIdleConnections()
	var out, errs lockedBuffer
	args := append([]string{"-config", writeConfig(t, "")}, tiny...)
	done := make(chan int)
	go func() {
		done <- run(append(args, "-out", filepath.Join(t.TempDir(), "out"), "-steps", "120", "-web", ":0"), &out, &errs)
	}()
	address := regexp.MustCompile(`(?m)^live +(http://127\.0\.0\.1:\d+/)$`)
	var seen int
	for start := time.Now(); seen == 0 && time.Since(start) < time.Minute; time.Sleep(5 * time.Millisecond) {
		if m := address.FindStringSubmatch(out.String()); m != nil {
			seen = points(m[1])
		}
	}
	if code := <-done; code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	if seen == 0 {
		t.Errorf("no losses on the page of the training:\n%s", out.String())
	}
	if code, _, stderr := command(append(args, "-out", filepath.Join(t.TempDir(), "x"), "-web", "0.0.0.0:80")...); code != 1 && code != exitUsage || !strings.Contains(stderr, "loopback") {
		t.Errorf("a page for everybody: exit code %d, %s", code, stderr)
	}
}

// points returns how many losses the page has; 0 when it cannot be asked.
func points(url string) int {
	resp, err := http.Get(url + "data")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	var data struct {
		Series map[string][][2]float64 `json:"series"`
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(raw, &data) != nil {
		return 0
	}
	return len(data.Series["Train/Samples/train_loss"])
}
