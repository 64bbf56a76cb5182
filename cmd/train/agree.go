package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/zero/comm"
)

// introduction is what a process tells the others before they train together.
type introduction struct {
	Error  string `json:",omitempty"` // what is wrong with its command line or files
	Config string `json:",omitempty"` // hash of the effective configuration, without the output folder
	Binary string `json:",omitempty"` // hash of the program
	Data   string `json:",omitempty"` // hash of a part of the data
	Resume string `json:",omitempty"` // the checkpoint it goes on from
	Out    string `json:",omitempty"` // rank 0's output folder
	Host   string `json:",omitempty"`
	PID    int
}

// sampled is how many pictures stand for a data set.
const sampled = 64

// agreeOnStart is collective: an error of one process is that of all, and so is a
// difference between them. Where all is well j has rank 0's output folder.
func agreeOnStart(c comm.Communicator, j *job, prepared error) error {
	ctx := context.Background() // bounded by the communicator's timeout
	mine := introduce(c, j, prepared)
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	texts, err := comm.Texts(ctx, c, "start", string(text))
	if err != nil {
		return err
	}
	all := make([]introduction, len(texts))
	for r, t := range texts {
		if err := json.Unmarshal([]byte(t), &all[r]); err != nil {
			return fmt.Errorf("rank %d introduces itself with %q: %w", r, t, err)
		}
	}
	if err := firstError(all); err != nil {
		return usageError{err}
	}
	for r, in := range all {
		if in.Config != all[0].Config {
			return differentConfigs(ctx, c, j)
		}
		if in.Binary != all[0].Binary {
			return usageError{fmt.Errorf("rank 0 on %s and rank %d on %s run different builds of this program (%s and %s): copy one to all machines", all[0].Host, r, in.Host, all[0].Binary, in.Binary)}
		}
		if in.Data != all[0].Data {
			return usageError{fmt.Errorf("rank 0 on %s and rank %d on %s have different data (%s and %s): put the same files on all machines", all[0].Host, r, in.Host, all[0].Data, in.Data)}
		}
	}
	for r, in := range all {
		if in.Resume != all[0].Resume {
			return usageError{fmt.Errorf("rank 0 on %s goes on from %s, rank %d on %s from %s: all ranks must see one folder of checkpoints", all[0].Host, all[0].Resume, r, in.Host, in.Resume)}
		}
	}
	j.processes = processes(all)
	j.out = all[0].Out
	j.cfg.Run.Out = j.out
	return nil
}

// processes says where the ranks are, for whoever reads a launcher's message about a
// process.
func processes(all []introduction) string {
	var b strings.Builder
	for r, in := range all {
		switch {
		case r == 0 || in.Host != all[r-1].Host:
			fmt.Fprintf(&b, "; %s: rank %d is process %d", in.Host, r, in.PID)
		default:
			fmt.Fprintf(&b, ", %d %d", r, in.PID)
		}
	}
	return strings.TrimPrefix(b.String(), "; ")
}

func introduce(c comm.Communicator, j *job, prepared error) introduction {
	var in introduction
	in.Host, _ = os.Hostname() // only for messages
	in.PID = os.Getpid()
	if prepared == nil && j.cfg.Comm.World != c.Size() {
		prepared = fmt.Errorf("comm.world = %d (%s), but MPI has started %d: start with mpirun -np %d", j.cfg.Comm.World, j.cfg.WorldOrigin, c.Size(), j.cfg.Comm.World)
	}
	if prepared == nil {
		in.Out = j.out
		in.Config = hash([]byte(j.comparable()))
		in.Resume = j.resume.describe()
		in.Binary, prepared = hashOfProgram()
	}
	if prepared == nil {
		in.Data, prepared = hashOfData(j.train, j.heldOut)
	}
	if prepared != nil {
		in.Error = prepared.Error()
	}
	return in
}

// firstError names the ranks that have the first error.
func firstError(all []introduction) error {
	first, ranks := "", []string(nil)
	for r, in := range all {
		if first == "" {
			first = in.Error
		}
		if in.Error != "" && in.Error == first {
			ranks = append(ranks, fmt.Sprint(r))
		}
	}
	switch {
	case first == "":
		return nil
	case len(ranks) == len(all):
		return errors.New(first)
	case len(ranks) == 1:
		return fmt.Errorf("rank %s on %s: %s", ranks[0], all[rankOf(all, first)].Host, first)
	}
	return fmt.Errorf("ranks %s: %s", strings.Join(ranks, ", "), first)
}

func rankOf(all []introduction, text string) int {
	for r, in := range all {
		if in.Error == text {
			return r
		}
	}
	return 0
}

// comparable is the configuration without what may differ.
func (j *job) comparable() string {
	c := *j.cfg
	c.Run.Out = ""
	return string(c.TOML())
}

// differentConfigs names the first line that differs. It is collective.
func differentConfigs(ctx context.Context, c comm.Communicator, j *job) error {
	texts, err := comm.Texts(ctx, c, "configurations", j.comparable())
	if err != nil {
		return err
	}
	first := strings.Split(texts[0], "\n")
	for r, text := range texts[1:] {
		section := ""
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "[") {
				section = line + " "
			}
			if i >= len(first) || line != first[i] {
				return usageError{fmt.Errorf("the ranks have different configurations: rank 0 has %s%s; rank %d has %s%s", section, first[min(i, len(first)-1)], r+1, section, line)}
			}
		}
	}
	return usageError{errors.New("the ranks have different configurations")}
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func hashOfProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return runtime.GOARCH + " " + hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// hashOfData hashes the number of samples and some of them, from all over.
func hashOfData(sets ...data.Dataset) (string, error) {
	h := sha256.New()
	for _, ds := range sets {
		c, height, w := ds.Shape()
		fmt.Fprintln(h, ds.Len(), c, height, w)
		pixels := make([]float32, c*height*w)
		for k := range min(sampled, ds.Len()) {
			label, err := ds.Load(k*ds.Len()/min(sampled, ds.Len()), pixels)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(h, label)
			for _, v := range pixels {
				var b [4]byte
				binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
				h.Write(b[:])
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
