package diskstore

import (
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// readAhead has the pages that ReadAhead has read and no Read has returned since. With Options.RAM
// a page counts as used when a Read finds it in memory there; a page that has left that memory
// before is of no use. Without Options.RAM the page is in the system's page cache, which does not
// say whether it kept the page: the first Read of the page counts.
type readAhead struct {
	counts *counters

	mu    sync.Mutex
	pages map[pagefile.Name]bool
}

// aheadNotedMax bounds readAhead.pages. Further pages never count as used.
const aheadNotedMax = 1 << 16

// note is called for a page that was read ahead.
func (a *readAhead) note(name pagefile.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pages == nil {
		a.pages = make(map[pagefile.Name]bool)
	}
	if len(a.pages) < aheadNotedMax {
		a.pages[name] = true
	}
}

// used is called for a page that a Read returned, from memory or not.
func (a *readAhead) used(name pagefile.Name, memory bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.pages[name] {
		return
	}
	delete(a.pages, name)
	if memory {
		a.counts.aheadUsed.Add(1)
	}
}
