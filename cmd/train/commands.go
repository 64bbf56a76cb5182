package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// commands are the words that may stand in front of the flags; without one, train
// trains.
var commands = map[string]func(args []string, stdout, stderr io.Writer) error{
	"bisect":   bisectCommand,
	"compare":  compareCommand,
	"config":   configCommand,
	"eval":     evalCommand,
	"export":   exportCommand,
	"gap":      gapCommand,
	"inspect":  inspectCommand,
	"netcheck": netcheckCommand,
	"plan":     planCommand,
	"sample":   sampleCommand,
}

// dispatch runs the command that args name.
func dispatch(args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, ok := commands[args[0]]
		if !ok {
			return usageError{fmt.Errorf("unknown command %q: allowed are %s; to train, begin with -config FILE",
				args[0], strings.Join(slices.Sorted(maps.Keys(commands)), ", "))}
		}
		return command(args[1:], stdout, stderr)
	}
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	return train(o, stdout, stderr)
}
