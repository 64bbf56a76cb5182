// Package web shows a running training in a browser: one page on this machine, with
// the curves as they grow and the newest generated pictures, and the same numbers for
// Prometheus. The page needs nothing from anywhere else.
package web

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zerogap/zerogap/internal/monitor"
)

//go:embed page.html
var page []byte

// Options say what to show and where.
type Options struct {
	// Addr is host:port of this machine's loopback interface; the host may be left
	// out, and port 0 takes a free one.
	Addr string
	// Title heads the page.
	Title string
	// Samples is the folder whose newest PNG file, by name, is shown.
	Samples string
	// Total is the number of training samples of the whole run.
	Total int
}

// Server is a monitor that a browser looks at. Write may be called while pages are
// being served.
type Server struct {
	o      Options
	listen net.Listener
	http   *http.Server
	served chan struct{}

	mu     sync.RWMutex
	order  []string            // series in order of their first event
	series map[string][]sample // by name
	done   bool
}

// sample is [samples trained on, value]; NaN and infinities are null.
type sample [2]any

// Open starts serving.
func Open(o Options) (*Server, error) {
	addr, err := loopback(o.Addr)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("-web %s: %w: choose another port, or 0 for any free one", o.Addr, err)
	}
	s := &Server{o: o, listen: l, served: make(chan struct{}), series: map[string][]sample{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /data", s.data)
	mux.HandleFunc("GET /samples.png", s.samples)
	mux.HandleFunc("GET /metrics", s.metrics)
	s.http = &http.Server{Handler: s.guard(mux), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(l) // ends with Close, or with a listener that the system took away
	}()
	return s, nil
}

// loopback completes the address and refuses one that other machines could reach.
func loopback(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("-web %s: %w: give host:port, such as localhost:8080 or :0", addr, err)
	}
	switch ip := net.ParseIP(host); {
	case host == "" || host == "localhost":
		host = "127.0.0.1"
	case ip == nil || !ip.IsLoopback():
		return "", fmt.Errorf("-web %s: %q is not this machine's loopback interface: the page has no password; use :%s, and an ssh tunnel from elsewhere", addr, host, port)
	}
	return net.JoinHostPort(host, port), nil
}

// URL is where the page is.
func (s *Server) URL() string { return "http://" + s.listen.Addr().String() + "/" }

// Write implements monitor.Writer.
func (s *Server) Write(samples int, events ...monitor.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if _, ok := s.series[e.Name]; !ok {
			s.order = append(s.order, e.Name)
		}
		var v any = e.Value
		if math.IsNaN(e.Value) || math.IsInf(e.Value, 0) {
			v = nil // JSON has no such numbers
		}
		s.series[e.Name] = append(s.series[e.Name], sample{samples, v})
	}
	return nil
}

// Close tells open pages that the run is over, answers what has been asked and stops
// serving.
func (s *Server) Close() error {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.served
	return err
}

// guard refuses requests that a page of another site could have made a browser send:
// their Host is a name that resolves to this machine.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "ask for localhost", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; img-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(page)
}

// update is what the page asks for: the points that it does not have.
type update struct {
	Title   string              `json:"title"`
	Total   int                 `json:"total"`
	Done    bool                `json:"done"`
	Order   []string            `json:"order"`
	Series  map[string][]sample `json:"series"`
	Picture string              `json:"picture"` // name of the newest, "" for none
}

// data answers with the points beyond the numbers that the query holds: have=NAME:N
// for each series.
func (s *Server) data(w http.ResponseWriter, r *http.Request) {
	have := map[string]int{}
	for _, h := range r.URL.Query()["have"] {
		colon := strings.LastIndexByte(h, ':')
		n, err := strconv.Atoi(h[colon+1:])
		if colon < 0 || err != nil || n < 0 {
			http.Error(w, "want have=NAME:COUNT", http.StatusBadRequest)
			return
		}
		have[h[:colon]] = n
	}
	picture := s.newest()
	s.mu.RLock()
	u := update{Title: s.o.Title, Total: s.o.Total, Done: s.done, Order: s.order, Series: map[string][]sample{}, Picture: picture}
	for name, points := range s.series {
		u.Series[name] = points[min(have[name], len(points)):]
	}
	raw, err := json.Marshal(u)
	s.mu.RUnlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(raw)
}

// newest returns the name of the newest grid of pictures, "" when there is none.
func (s *Server) newest() string {
	files, err := os.ReadDir(s.o.Samples) // in order of their names
	if err != nil {
		return ""
	}
	for _, f := range slices.Backward(files) {
		if filepath.Ext(f.Name()) == ".png" {
			return f.Name()
		}
	}
	return ""
}

func (s *Server) samples(w http.ResponseWriter, r *http.Request) {
	name := s.newest()
	if name == "" {
		http.NotFound(w, r)
		return
	}
	raw, err := os.ReadFile(filepath.Join(s.o.Samples, name))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Write(raw)
}

// metrics answers with the last value of each series in Prometheus' text format:
// Train/Samples/train_loss is zerogap_train_samples_train_loss.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	trained := 0
	for _, name := range s.order {
		points := s.series[name]
		last := points[len(points)-1]
		trained = max(trained, last[0].(int))
		value := "NaN"
		if v, ok := last[1].(float64); ok {
			value = fmt.Sprint(v)
		}
		metric := metricName(name)
		fmt.Fprintf(w, "# HELP %s Last value of %s.\n# TYPE %[1]s gauge\n%[1]s %[3]s\n", metric, name, value)
	}
	fmt.Fprintf(w, "# HELP zerogap_samples_total Samples trained on.\n# TYPE zerogap_samples_total counter\nzerogap_samples_total %d\n", trained)
}

func metricName(series string) string {
	clean := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}
	return "zerogap_" + strings.Map(clean, series)
}
