package llamatier

import "sync"

// background is the work behind requests, for which Flush waits.
type background struct{ sync.WaitGroup }

// spawn runs a function in a goroutine of its own. The caller has made a slot busy.
func (b *background) spawn(f func()) {
	b.Add(1)
	go func() {
		defer b.Done()
		f()
	}()
}
