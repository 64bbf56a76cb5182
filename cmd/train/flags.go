package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// newFlags returns the flags of a command.
func newFlags(command string) *flag.FlagSet {
	f := flag.NewFlagSet("train "+command, flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by run
	return f
}

// parseFlags parses the flags of a command that takes nothing else.
func parseFlags(f *flag.FlagSet, args []string, stderr io.Writer) error {
	if err := parseArgs(f, args, stderr); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: options begin with a dash (%s -help lists them)", f.Arg(0), f.Name())}
	}
	return nil
}

// parseArgs parses the flags of a command that takes words behind them.
func parseArgs(f *flag.FlagSet, args []string, stderr io.Writer) error {
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stderr)
		f.Usage()
		return err
	case err != nil:
		return usageError{fmt.Errorf("%w (%s -help lists the flags)", err, f.Name())}
	}
	return nil
}

// interruptible is a context that Ctrl-C or SIGTERM ends.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
