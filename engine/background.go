package engine

import "sync"

// Background is work behind requests. Nothing may begin while Wait waits and none is under way.
type Background struct{ sync.WaitGroup }

// Spawn runs a function in a goroutine of its own.
func (b *Background) Spawn(f func()) {
	b.Add(1)
	go func() {
		defer b.Done()
		f()
	}()
}
