package elastic

import (
	"errors"
	"sync"
	"time"
)

// Watch polls the pool's segment on a goroutine of its own, and hands each failure to report,
// which may be nil. A lock that another process holds is no failure: the next round tries
// again. The returned function ends the goroutine and waits for it; call it before Close.
func (p *Pool) Watch(every time.Duration, report func(error)) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				if err := p.Poll(); err != nil && !errors.Is(err, ErrBusy) && report != nil {
					report(err)
				}
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() { close(end) })
		<-ended
	}
}
