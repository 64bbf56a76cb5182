package checkpoint

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

// TestResumeMatrix: a training that was saved at any world size, stage and bucket and
// goes on at any other ends with the bits of one that never stopped.
func TestResumeMatrix(t *testing.T) {
	const stop, end = 3, 6
	worlds, stages := []int{1, 2, 4}, []int{0, 1, 2}
	if testing.Short() {
		worlds, stages = []int{1, 4}, []int{0, 2}
	}
	for _, format := range []string{"fp32", "bf16", "fp16"} {
		want := setup{world: 1, stage: 0, bucket: 1000, format: format, ema: true}.outcome(t, end)
		for _, w := range worlds {
			for _, stage := range stages {
				dir := t.TempDir()
				from := setup{world: w, stage: stage, bucket: 64, format: format, ema: true}
				from.save(t, dir, stop)
				for _, w2 := range worlds {
					for _, stage2 := range stages {
						to := setup{world: w2, stage: stage2, bucket: 91, format: format, ema: true}
						if got := to.resumed(t, end, func() (*Folder, error) { return Latest(dir) }); got != want {
							t.Errorf("saved with %v, resumed with %v:\n got %s\nwant %s", from, to, got, want)
						}
					}
				}
			}
		}
	}
}

// TestSavingLeavesTheTrainingAlone: neither a save nor one off a copy, with steps
// between its beginning and its end, changes a bit; and what is saved is the state at
// the beginning.
func TestSavingLeavesTheTrainingAlone(t *testing.T) {
	s := setup{world: 2, stage: 2, bucket: 64, format: "bf16", ema: true}
	want, dir := s.outcome(t, 8), t.TempDir()
	s.must(t, func(r *rank) error {
		saver := NewSaver(r.opt, r.c, Options{Dir: dir})
		defer saver.Close()
		for step := 1; step <= 6; step++ {
			if err := r.steps(step); err != nil {
				return err
			}
			pending, err := saver.Begin(r.ctx, StepTag(step))
			if err != nil {
				return err
			}
			if _, err := saver.Begin(r.ctx, "another"); err == nil || !strings.Contains(err.Error(), StepTag(step)) {
				return fmt.Errorf("a second save at a time: error %v", err)
			}
			if err := r.steps(step + 2); err != nil {
				return err
			}
			if err := pending.Commit(r.ctx); err != nil {
				return err
			}
			step++
		}
		if err := r.steps(8); err != nil {
			return err
		}
		got, err := r.fingerprint()
		if err == nil && got != want {
			err = fmt.Errorf("with saves: %s\nwithout: %s", got, want)
		}
		return err
	})
	for _, step := range []int{1, 3, 5} {
		got := s.resumed(t, 8, func() (*Folder, error) { return Tagged(dir, StepTag(step)) })
		if got != want {
			t.Errorf("resumed from the copy of step %d: %s\nwant %s", step, got, want)
		}
	}
}

func TestReadingByName(t *testing.T) {
	s := setup{world: 4, stage: 2, bucket: 64, format: "bf16", ema: true}
	dir := t.TempDir()
	s.save(t, dir, 2, Attachment{Name: "notes.json", Data: []byte(`{"a": 1}`)})
	f, err := Latest(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Step() != 2 || f.Manifest().World != 4 || f.Manifest().Progress.Applied != 2 || f.Path() != filepath.Join(dir, StepTag(2)) {
		t.Errorf("%+v in %s", f.Manifest().Progress, f.Path())
	}
	if notes, err := f.Attachment("notes.json"); err != nil || string(notes) != `{"a": 1}` {
		t.Errorf("attachment %q, %v", notes, err)
	}
	s.must(t, func(r *rank) error {
		if err := r.steps(2); err != nil {
			return err
		}
		for i, p := range r.opt.Params() {
			want, err := r.opt.FullParam(r.ctx, p.Name)
			if err != nil {
				return err
			}
			got, err := f.Master(p.Name)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("master weights of %s: %v, %w", p.Name, got, err)
			}
			weights, err := f.Weights(p.Name)
			if err != nil || bits(weights) != bits(r.opt.Value(i)) {
				return fmt.Errorf("weights of %s: %v, %w", p.Name, weights, err)
			}
			for _, key := range r.opt.StateNames(i) {
				want, err := r.opt.FullState(r.ctx, p.Name, key)
				if err != nil {
					return err
				}
				if got, err := f.State(p.Name, key); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					return fmt.Errorf("%s of %s: %v, %w", key, p.Name, got, err)
				}
			}
		}
		return nil
	})
	for _, c := range []struct {
		err  error
		want string
	}{
		{errOf(f.Master("nobody")), `"nobody"`}, {errOf(f.State("layer.0/weight", "momentum")), "exp_avg_sq"},
		{errOf(f.Attachment("x")), "no file x"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("error %v does not contain %q", c.err, c.want)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

// TestOtherModelsAreRefused, on every rank, before anything is written.
func TestOtherModelsAreRefused(t *testing.T) {
	dir := t.TempDir()
	setup{world: 2, stage: 2, bucket: 64, format: "bf16", ema: true}.save(t, dir, 2)
	for name, c := range map[string]struct {
		s    setup
		want string
	}{
		"shape": {setup{edit: func(p []zero.Param) []zero.Param { p[1].Shape = []int{7, 100}; return p }}, "[700] there and [7 100] here"},
		"name":  {setup{edit: func(p []zero.Param) []zero.Param { p[1].Name = "x"; return p }}, `"x" is not in it; its parameter "layer.1/weight" is not in the model`},
		"less":  {setup{edit: func(p []zero.Param) []zero.Param { return p[:4] }}, `"layer.4/weight" is not in the model`},
		"thaw":  {setup{edit: func(p []zero.Param) []zero.Param { p[frozen].Frozen = false; return p }}, "frozen there and trained here"},
		"rule":  {setup{}, "ema"},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.world, c.s.stage, c.s.bucket, c.s.format, c.s.ema = 2, 1, 64, "bf16", name != "rule"
			f, err := Latest(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			c.s.must(t, func(r *rank) error {
				before, err := r.fingerprint()
				if err != nil {
					return err
				}
				err = f.Load(r.ctx, r.opt, r.c)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("error %v does not contain %q", err, c.want)
				}
				after, err := r.fingerprint()
				if err == nil && after != before {
					err = fmt.Errorf("the refused checkpoint changed the training")
				}
				return err
			})
		})
	}
}

// TestMisuse: a save inside a step, tags that differ between the ranks or cannot be a
// folder. The training goes on after each.
func TestMisuse(t *testing.T) {
	s := setup{world: 2, stage: 2, bucket: 64, format: "fp32"}
	want, dir := s.outcome(t, 3), t.TempDir()
	s.must(t, func(r *rank) error {
		saver := NewSaver(r.opt, r.c, Options{Dir: dir})
		refuse := func(want string, err error) error {
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("error %v does not contain %q", err, want)
			}
			return nil
		}
		if err := r.steps(1); err != nil {
			return err
		}
		if err := refuse("the ranks differ", saver.Save(r.ctx, fmt.Sprint("rank", r.c.Rank()))); err != nil {
			return err
		}
		for _, tag := range []string{"", "latest", ".hidden", "a/b", "a\nb"} {
			if err := refuse("tag", saver.Save(r.ctx, tag)); err != nil {
				return err
			}
		}
		if err := refuse("is taken", saver.Save(r.ctx, "x", Attachment{Name: ManifestFile})); err != nil {
			return err
		}
		// In the middle of a step: after one of its two backwards.
		if err := r.backward(1, r.c.Rank()); err != nil {
			return err
		}
		if err := refuse("after 1 of 2 backwards of step 2", saver.Save(r.ctx, "middle")); err != nil {
			return err
		}
		if err := r.backward(1, 2+r.c.Rank()); err != nil {
			return err
		}
		if _, err := r.opt.Step(r.ctx, 0.05); err != nil {
			return err
		}
		if err := r.steps(3); err != nil {
			return err
		}
		got, err := r.fingerprint()
		if err == nil && got != want {
			err = fmt.Errorf("after refused saves: %s\nwant %s", got, want)
		}
		return err
	})
	if all, err := List(dir); err != nil || len(all) != 0 {
		t.Errorf("refused saves left %v, %v", all, err)
	}
}
