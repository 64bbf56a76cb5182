package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/zerogap/zerogap/internal/config"
)

// configCommand is "train config": it lists the keys, or shows what a configuration
// comes to.
//
//	train config -list [WORD]
//	train config -show -config FILE [-set key=value]...
func configCommand(args []string, stdout, stderr io.Writer) error {
	var list, show bool
	var path string
	var sets repeated
	f := newFlags("config")
	f.BoolVar(&list, "list", false, "list the configuration keys, those that hold a word if one is given")
	f.BoolVar(&show, "show", false, "print the effective configuration, with every default filled in")
	f.StringVar(&path, "config", "", "configuration `file`, for -show")
	f.Var(&sets, "set", "`key=value` overrides a configuration key, for -show; may be repeated")
	if err := parseArgs(f, args, stderr); err != nil {
		return err
	}
	switch {
	case list == show:
		return usageError{errors.New("train config wants -list or -show: -list [WORD], or -show -config FILE")}
	case list:
		return listKeys(f.Args(), path != "" || len(sets) > 0, stdout)
	case f.NArg() > 0:
		return usageError{fmt.Errorf("unexpected argument %q: options begin with a dash, such as -config configs/zero2.toml", f.Arg(0))}
	case path == "":
		return usageError{errors.New("no configuration: give one with -config, for example -config configs/zero2.toml")}
	}
	cfg, err := config.Load(path, sets, checks()...)
	if err != nil {
		return usageError{err}
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(stderr, "train: warning: %s\n", w)
	}
	_, err = stdout.Write(cfg.TOML())
	return err
}

func listKeys(words []string, more bool, stdout io.Writer) error {
	word := ""
	switch {
	case more:
		return usageError{errors.New("-config and -set are for train config -show; -list shows the keys and their defaults")}
	case len(words) > 1:
		return usageError{fmt.Errorf("train config -list takes one word, not %q", words)}
	case len(words) == 1:
		word = words[0]
	}
	text := config.Text(word)
	if text == "" {
		return usageError{fmt.Errorf("no configuration key holds %q: train config -list shows all", word)}
	}
	_, err := io.WriteString(stdout, text)
	return err
}
