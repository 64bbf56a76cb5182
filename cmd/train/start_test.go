package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// firstStep notes when the first step is shown.
type firstStep struct{ at time.Time }

func (f *firstStep) Write(p []byte) (int, error) {
	if f.at.IsZero() && strings.Contains(string(p), "step 1/") {
		f.at = time.Now()
	}
	return len(p), nil
}

// BenchmarkStart is the time from the command to the end of the first step of
// configs/zero2.toml and configs/emoji.toml, on drawn pictures. The limit is one
// second.
func BenchmarkStart(b *testing.B) {
	for _, name := range []string{"zero2", "emoji"} {
		b.Run(name, func(b *testing.B) {
			var total time.Duration
			for i := 0; b.Loop(); i++ {
				var first firstStep
				began := time.Now()
				code := run([]string{"-config", "../../configs/" + name + ".toml", "-steps", "1", "-set", "data.kind=procedural",
					"-set", "run.sample_count=0", "-set", "run.eval_samples=1", "-out", filepath.Join(b.TempDir(), "out")}, &first, io.Discard)
				if code != 0 || first.at.IsZero() {
					b.Fatalf("exit code %d, first step seen: %v", code, !first.at.IsZero())
				}
				total += first.at.Sub(began)
			}
			b.ReportMetric(float64(total)/float64(b.N)/1e6, "first-step-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}
