package kernel

import "sync"

// stock keeps working memory between calls. Unlike a sync.Pool it keeps it through
// garbage collections: there are as many items as were ever in use at once, and a
// training step does not allocate them again. The zero stock is ready.
type stock[T any] struct {
	mu   sync.Mutex
	free []*T
}

// take returns an item with arbitrary contents, the one used last if there is any.
func (s *stock[T]) take() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return new(T)
	}
	x := s.free[n-1]
	s.free = s.free[:n-1]
	return x
}

// put gives an item back.
func (s *stock[T]) put(x *T) {
	s.mu.Lock()
	s.free = append(s.free, x)
	s.mu.Unlock()
}
