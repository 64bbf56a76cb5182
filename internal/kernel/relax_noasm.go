//go:build !amd64 || noasm

package kernel

import "runtime"

// relax lets some hundred cycles pass.
func relax() { runtime.Gosched() }
