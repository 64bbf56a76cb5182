//go:build !amd64 || noasm

package kernel

// Arithmetic names the rounding of matrix products on this machine: "fma", one
// rounding for a product and its addition, or "plain", two. All other kernels
// give the same bits everywhere. Results of one name compare bit for bit.
func Arithmetic() string { return "plain" }
