package solver

import "sync"

// building is held while a graph is built. It is the one lock of the package, for the
// process, since what it guards is: a counter of Gorgonia's own that every new group of
// nodes, in whatever graph, takes its number from.
var building sync.Mutex

// Build runs f, which makes a graph: nodes, operations, gorgonia.Grad, the tape machine.
// Ranks in one process build their graphs through it, one after the other; two that
// built at once would race in Gorgonia. Running a graph needs no such care. It returns
// f's error. f must not call Build, New or anything else that waits for another rank.
func Build(f func() error) error {
	building.Lock()
	defer building.Unlock()
	return f()
}
