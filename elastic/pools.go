package elastic

import (
	"slices"
	"sync"
)

// Pools are the pools of a process: one of host memory, and one of each device that is asked for.
// Its methods may be called by any goroutine.
type Pools struct {
	make func(device int) (*Pool, error)

	mu     sync.Mutex
	failed map[int]error
	all    []*Pool // by device; replaced, never changed
}

// NewPools makes no pool yet: make is called once for each device, when the device is first asked for.
func NewPools(make func(device int) (*Pool, error)) *Pools {
	return &Pools{make: make, failed: map[int]error{}}
}

// On is the pool of a device, or of the Host. Where it could not be made the error stays.
func (p *Pools) On(device int) (*Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, found := slices.BinarySearchFunc(p.all, device, func(pool *Pool, device int) int { return pool.Device() - device })
	if found {
		return p.all[at], nil
	}
	if err := p.failed[device]; err != nil {
		return nil, err
	}
	pool, err := p.make(device)
	if err != nil {
		p.failed[device] = err
		return nil, err
	}
	p.all = slices.Insert(slices.Clone(p.all), at, pool)
	return pool, nil
}

// All are the pools that were made, by device. The caller does not change the slice.
func (p *Pools) All() []*Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}
