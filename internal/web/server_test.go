package web

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/internal/monitor"
)

var _ monitor.Writer = (*Server)(nil)

const loss, norm = "Train/Samples/train_loss", "Train/Samples/grad_norm"

// serve starts a server that has seen 50 steps and one grid of pictures.
func serve(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"step-000025.png": onePixel, "step-000010.png": "old", "notes.txt": "no picture"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(Options{Addr: ":0", Title: "a <test> run", Samples: dir, Total: 3200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for i := 1; i <= 50; i++ {
		if err := s.Write(32*i, monitor.Event{Name: loss, Value: 1 / float64(i)}, monitor.Event{Name: norm, Value: math.Inf(1)}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// onePixel is a PNG file of one pixel.
const onePixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\nIDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"

func get(t *testing.T, url, host string) (int, string) {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestDataIsWhatThePageLacks(t *testing.T) {
	s := serve(t)
	for query, want := range map[string]int{"": 50, "?have=" + loss + ":48": 2, "?have=" + loss + ":50": 0, "?have=" + loss + ":99": 0} {
		_, body := get(t, s.URL()+"data"+query, "localhost")
		var u update
		if err := json.Unmarshal([]byte(body), &u); err != nil {
			t.Fatal(err)
		}
		if got := len(u.Series[loss]); got != want {
			t.Errorf("%q: %d points, want %d", query, got, want)
		}
		if u.Title != "a <test> run" || u.Total != 3200 || u.Picture != "step-000025.png" || u.Done || len(u.Order) != 2 {
			t.Errorf("%q: %+v", query, u)
		}
		if n := len(u.Series[norm]); n != 50 || u.Series[norm][49][1] != nil {
			t.Errorf("%q: infinities are %v", query, u.Series[norm][49])
		}
	}
	if code, _ := get(t, s.URL()+"data?have=x", "localhost"); code != http.StatusBadRequest {
		t.Errorf("a bad question got status %d", code)
	}
}

func TestNewestPicture(t *testing.T) {
	if code, body := get(t, serve(t).URL()+"samples.png", "localhost"); code != 200 || body != onePixel {
		t.Errorf("status %d, %d bytes", code, len(body))
	}
}

func TestMetricsAreInPrometheusFormat(t *testing.T) {
	_, body := get(t, serve(t).URL()+"metrics", "localhost")
	for _, want := range []string{
		"# TYPE zerogap_train_samples_train_loss gauge\nzerogap_train_samples_train_loss 0.02\n",
		"zerogap_train_samples_grad_norm NaN\n",
		"# TYPE zerogap_samples_total counter\nzerogap_samples_total 1600\n",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q:\n%s", want, body)
		}
	}
}

func TestOnlyThisMachineIsServed(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", "192.0.2.1:80", "example.org:80", "8080"} {
		if s, err := Open(Options{Addr: addr}); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("address %s: error %v", addr, err)
			if s != nil {
				s.Close()
			}
		}
	}
	s := serve(t)
	for host, want := range map[string]int{"localhost:80": 200, "127.0.0.1": 200, "[::1]:9": 200, "evil.example": 403} {
		if code, _ := get(t, s.URL(), host); code != want {
			t.Errorf("host %s: status %d, want %d", host, code, want)
		}
	}
	if _, err := Open(Options{Addr: s.listen.Addr().String()}); err == nil || !strings.Contains(err.Error(), "another port") {
		t.Errorf("a port in use: error %v", err)
	}
}

// TestPageInABrowser opens the page in headless Chromium and reads what its script
// made of the data.
func TestPageInABrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is not installed: apt-get install chromium")
		}
		t.Skip("chromium is not installed")
	}
	s := serve(t)
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(), "--virtual-time-budget=4000", "--dump-dom", s.URL())
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	dom, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<title>a &lt;test&gt; run</title>", "1,600 of 3,200 samples", ">running<",
		">train loss<", ">0.02<", ">grad norm<", ">not finite<", `src="/samples.png?step-000025.png"`, "width: 50%",
	} {
		if !strings.Contains(string(dom), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", dom)
	}
}
