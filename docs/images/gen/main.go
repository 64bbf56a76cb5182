// Command gen draws the figures of the documents.
//
//	go run ./docs/images/gen layout > docs/images/layout.svg
//	go run ./docs/images/gen gradient > docs/images/gradient.svg
//	go run ./docs/images/gen trace out/zero2/trace.json > docs/images/trace.svg
//
// The last one draws a trace that the train command has written with -trace.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	draw := func() (string, error) { return "", errors.New("want layout, gradient, or trace and a file") }
	switch {
	case len(args) == 1 && args[0] == "layout":
		draw = layout
	case len(args) == 1 && args[0] == "gradient":
		draw = gradient
	case len(args) == 2 && args[0] == "trace":
		draw = func() (string, error) { return timeline(args[1]) }
	}
	figure, err := draw()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, figure)
	return err
}
