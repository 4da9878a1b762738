package kvcache

import (
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// thinMax bounds the pages that are remembered as thin.
const thinMax = 4096

// thinPages are pages that are known to be stored without some group's rows. A slot that has the rows
// stores such a page again. Methods may be called with any lock held.
type thinPages struct {
	mu   sync.Mutex
	keys map[pagefile.Key]bool
}

func (p *thinPages) add(key pagefile.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil || len(p.keys) >= thinMax {
		p.keys = make(map[pagefile.Key]bool)
	}
	p.keys[key] = true
}

func (p *thinPages) has(key pagefile.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

func (p *thinPages) remove(key pagefile.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, key)
}
