package config

import (
	"math"
	"slices"
)

// derive fills in the values whose default is another value.
func (l *loader) derive() {
	c := l.cfg
	if !l.given("communication_data_type") {
		c.CommunicationDataType = c.ModelDType()
	}
	if !c.BF16.Enabled {
		c.BF16.CheckGradOverflow = true
	}
	c.Scheduler.Params.WarmupNumSteps = max(2, c.Scheduler.Params.WarmupNumSteps) // as DeepSpeed does
	if !l.given("model.out_channels") {
		c.Model.OutChannels = c.Model.InChannels
	}
	if !l.given("data.image_size") {
		c.Data.ImageSize = c.Model.SampleSize
	}
	if !l.given("data.channels") {
		c.Data.Channels = c.Model.InChannels
	}
	if !l.given("diffusion.sample_steps") {
		c.Diffusion.SampleSteps = min(250, c.Diffusion.NumTrainTimesteps)
	}
}

// cross checks values against each other. Keys whose own value was refused
// take no part: one mistake is one error.
func (l *loader) cross() {
	l.precision()
	l.optimizer()
	l.scheduler()
	l.model()
	l.diffusion()
}

func (l *loader) precision() {
	c := l.cfg
	if c.BF16.Enabled && c.FP16.Enabled {
		l.fail("bf16.enabled", "true, and so is fp16.enabled: choose one")
		return
	}
	if !l.sound("bf16.enabled", "fp16.enabled") {
		return
	}
	model := c.ModelDType()
	if e, given := l.entries["data_types.param_dtype"]; given && l.sound("data_types.param_dtype") {
		if d, err := l.index["data_types.param_dtype"].convert(e.value); err == nil && d != model {
			l.failValue("data_types.param_dtype", "the model's dtype is %s, by bf16.enabled and fp16.enabled: leave this key out or make them agree", model)
		}
	}
	f := c.FP16
	if l.sound("fp16.min_loss_scale", "fp16.initial_scale_power") && f.Enabled && f.LossScale == 0 && f.MinLossScale > math.Ldexp(1, f.InitialScalePower) {
		l.fail("fp16.min_loss_scale", "%g is above the first scale, 2^%d: lower it or raise fp16.initial_scale_power", f.MinLossScale, f.InitialScalePower)
	}
}

// optimizerParams says which parameters a type has besides lr.
func optimizerParams(typ string) []string {
	switch typ {
	case "SGD":
		return []string{"weight_decay", "momentum", "dampening", "nesterov"}
	case "Lion":
		return []string{"betas", "weight_decay"}
	case "Adam":
		return []string{"betas", "eps", "weight_decay", "adam_w_mode"}
	}
	return []string{"betas", "eps", "weight_decay"}
}

func (l *loader) optimizer() {
	const section, mode = "optimizer.params", "optimizer.params.adam_w_mode"
	if !l.sound("optimizer.type", mode) {
		return
	}
	o := &l.cfg.Optimizer
	has := append(optimizerParams(o.Type), "lr")
	if o.Type == "AdamW" {
		has = append(has, leafOf(mode)) // without effect, see below
	}
	l.params("optimizer.type", o.Type, section, has)
	switch {
	case o.Type == "Adam" && o.Params.AdamWMode:
		o.Type = "AdamW"
	case o.Type == "AdamW" && !o.Params.AdamWMode:
		l.warnf("%s = false: accepted without effect: the name AdamW decides, as in DeepSpeed", l.entries[mode].written)
		o.Params.AdamWMode = true
	case o.Type == "Lion" && !l.given(section+".betas"):
		o.Params.Betas = [2]float64{0.9, 0.99}
	}
	// torch.optim.AdamW, which torch_adam would choose, has another default.
	if o.Type == "AdamW" && l.entries["optimizer.params.torch_adam"].value == true && !l.given("optimizer.params.weight_decay") {
		l.fail("optimizer.params.weight_decay", "write it beside torch_adam: its default is 0.01 in torch.optim.AdamW and 0 without torch_adam")
	}
	if p := o.Params; p.Nesterov && (p.Momentum == 0 || p.Dampening != 0) && l.sound(section+".nesterov", section+".momentum", section+".dampening") {
		l.failValue(section+".nesterov", "needs momentum above 0, which is %g, and dampening = 0, which is %g", p.Momentum, p.Dampening)
	}
}

// params refuses honoured parameters of section that the type, which key chose,
// does not have.
func (l *loader) params(key, typ, section string, has []string) {
	for i := range l.keys {
		k := &l.keys[i]
		if sectionOf(k.Path) == section && k.Status == Honoured && l.given(k.Path) && !slices.Contains(has, leafOf(k.Path)) {
			l.failValue(k.Path, "%s %s has no such parameter: leave it out", key, typ)
		}
	}
}

// schedulerParams says which parameters a type has besides warmup_num_steps
// and warmup_type, which all but constant have.
func schedulerParams(typ string) []string {
	warmup := []string{"warmup_num_steps", "warmup_type"}
	switch typ {
	case "WarmupLR":
		return append(warmup, "warmup_min_lr", "warmup_max_lr")
	case "WarmupDecayLR":
		return append(warmup, "warmup_min_lr", "warmup_max_lr", "total_num_steps")
	case "WarmupCosineLR":
		return append(warmup, "warmup_min_ratio", "cos_min_ratio", "total_num_steps")
	}
	return nil
}

func (l *loader) scheduler() {
	const section, total = "scheduler.params", "scheduler.params.total_num_steps"
	if !l.sound("scheduler.type") {
		return
	}
	s := l.cfg.Scheduler
	has := schedulerParams(s.Type)
	l.params("scheduler.type", s.Type, section, has)
	if slices.Contains(has, "total_num_steps") && l.sound(total) {
		warmup := s.Params.WarmupNumSteps
		switch {
		case !l.given(total):
			l.fail(total, "scheduler.type %s needs it: the number of steps after which the decay has ended", s.Type)
		case l.sound(section+".warmup_num_steps") && s.Params.TotalNumSteps <= warmup:
			l.failValue(total, "must be above the %d steps of the warm-up (warmup_num_steps)", warmup)
		}
	}
	if lo, hi := s.Params.WarmupMinLR, s.Params.WarmupMaxLR; slices.Contains(has, "warmup_max_lr") &&
		l.sound(section+".warmup_min_lr", section+".warmup_max_lr") && lo > hi {
		l.fail(section+".warmup_min_lr", "%g is above warmup_max_lr = %g", lo, hi)
	}
}

func (l *loader) model() {
	c := l.cfg
	same := func(a string, x int, b string, y int, why string) {
		if l.sound(a, b) && x != y {
			l.fail(a, "%d is not %s = %d: %s", x, b, y, why)
		}
	}
	same("model.out_channels", c.Model.OutChannels, "model.in_channels", c.Model.InChannels, "the prediction has the shape of the picture")
	same("data.channels", c.Data.Channels, "model.in_channels", c.Model.InChannels, "the network takes pictures as the data give them")
	same("data.image_size", c.Data.ImageSize, "model.sample_size", c.Model.SampleSize, "pictures are made in the size that is trained")
	if c.Data.Path == "" && l.sound("data.kind", "data.path") {
		switch c.Data.Kind {
		case "emoji":
			l.fail("data.path", "data.kind = emoji needs it: the folder of the unpacked npm package emoji-datasource-google, see docs/data.md")
		case "folder":
			l.fail("data.path", "data.kind = folder needs it: the folder of the pictures")
		}
	}
}

func (l *loader) diffusion() {
	d := l.cfg.Diffusion
	const p = "diffusion."
	if l.sound(p+"beta_start", p+"beta_end") && d.BetaStart > d.BetaEnd {
		l.fail(p+"beta_start", "%g is above diffusion.beta_end = %g", d.BetaStart, d.BetaEnd)
	}
	if l.sound(p+"sample_steps", p+"num_train_timesteps") && d.SampleSteps > d.NumTrainTimesteps {
		l.fail(p+"sample_steps", "%d is above diffusion.num_train_timesteps = %d", d.SampleSteps, d.NumTrainTimesteps)
	}
	if l.sound(p+"sampler", p+"eta") && d.Sampler == "ddpm" && d.Eta != 0 {
		l.failValue(p+"eta", "sampler ddpm takes none: write 0 or choose ddim")
	}
}

// warn adds a line for each key without effect that asks for something, and
// one line for a section of such keys.
func (l *loader) warn() {
	said := map[string]bool{}
	for i := range l.keys {
		k := &l.keys[i]
		if k.Status != NoEffect || !l.given(k.Path) || l.bad[k.Path] {
			continue
		}
		v, err := k.convert(l.entries[k.Path].value)
		if err != nil || k.harmless(v) {
			continue
		}
		section := sectionOf(k.Path)
		if l.switchedOff(section) || said[section] {
			continue
		}
		if section != "" && l.idle(section) {
			said[section] = true
			l.warnf("%s: accepted without effect. %s", section, l.sectionDoc(section))
			continue
		}
		l.warnf("%s = %s: accepted without effect: %s", l.entries[k.Path].written, show(l.entries[k.Path].value), k.Doc)
	}
}

func (l *loader) sectionDoc(path string) string {
	for _, s := range Sections() {
		if s.Path == path {
			return s.Doc
		}
	}
	return ""
}

// warnOrder says once what the choice of a sum per rank means.
func (l *loader) warnOrder() {
	const order = "zero_optimization.reduction_order"
	c := l.cfg
	if z := c.ZeroOptimization; z.ReductionOrder == "local" && z.Stage < 2 && c.GradientAccumulationSteps > 1 {
		l.warnf("%s = local with %s = %d: results depend on the world size", order, keyAccum, c.GradientAccumulationSteps)
	}
}

// switchedOff reports whether a section has a key enabled that is false.
func (l *loader) switchedOff(section string) bool {
	k, ok := l.index[section+".enabled"]
	if section == "" || !ok {
		return false
	}
	e, given := l.entries[k.Path]
	return k.Default == false && (!given || e.value == false)
}

// idle reports whether no key of a section is honoured.
func (l *loader) idle(section string) bool {
	for i := range l.keys {
		if sectionOf(l.keys[i].Path) == section && l.keys[i].Status != NoEffect {
			return false
		}
	}
	return true
}
