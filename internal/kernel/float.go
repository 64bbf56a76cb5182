package kernel

// Float is an element type that the kernels compute in. float32 is the type of
// training and takes assembly where there is some; float64 always takes the
// plain Go path and serves numeric gradient checks.
type Float interface{ float32 | float64 }
