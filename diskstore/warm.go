package diskstore

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// warmLease is how long a page is served from memory without looking whether
	// a tier still has its file. It bounds for how long a page that somebody
	// deleted can still be used.
	warmLease = 10 * time.Second

	// warmSweepAge is how long a page that nobody asks for stays in memory before
	// its file is looked for.
	warmSweepAge = time.Minute
)

// warmTier keeps decoded pages in memory, as many as its limit takes, and lets
// those go first that were served least recently. What it holds are copies: a
// page is served only while its file is known to exist.
//
// Rows are outside the Go heap. There, gigabytes that live would let as many of
// garbage pile up before the collector runs, and memory would not go back to the
// system when the limit shrinks.
//
// A nil warmTier holds nothing.
type warmTier struct {
	now func() time.Time

	mu     sync.Mutex
	limit  int64                       // bytes
	used   int64                       // bytes of all pages, those that were let go and are still read included
	pages  map[pagefile.Name]*warmPage // those being filled included
	tails  map[pagefile.Key][]*warmPage
	order  list.List // of pages that can be served, the one served last in front
	served uint64    // counts what was put in front
	closed bool

	clock warmClock
}

// warmPage is one page. Fields up to placeable never change once it can be
// served, the others belong to warmTier.mu.
type warmPage struct {
	name   pagefile.Name
	header *pagefile.Header // without its section table
	rows   []byte           // the layout's buffer
	bytes  int64            // of the file
	// placeable says that the page's rows can also be used where they lie on disk.
	placeable bool

	level   *level    // where the file was last seen
	seen    time.Time // when
	used    time.Time // the file's recency
	served  uint64
	readers int  // who copy from rows now
	gone    bool // let go; the last reader frees the rows
	place   *list.Element
}

// warmPageBytes is what a page takes beside its rows, tokens, media and layout:
// itself, its header, its place in the order and in two maps.
const warmPageBytes = int64(unsafe.Sizeof(warmPage{}) + unsafe.Sizeof(pagefile.Header{}) + unsafe.Sizeof(list.Element{}) +
	2*(unsafe.Sizeof(pagefile.Name{})+unsafe.Sizeof((*warmPage)(nil))))

func newWarmTier() *warmTier {
	return &warmTier{now: time.Now, pages: make(map[pagefile.Name]*warmPage), tails: make(map[pagefile.Key][]*warmPage)}
}

// warmBytes is what a page with this header takes in memory.
func warmBytes(h *pagefile.Header) int64 {
	sections := int64(h.Layout.Len())
	return warmPageBytes + int64(h.Layout.Size()) +
		4*int64(len(h.Tokens)) + int64(unsafe.Sizeof(pagefile.Media{}))*int64(len(h.Media)) +
		int64(unsafe.Sizeof(pagefile.Section{}))*sections + int64(unsafe.Sizeof(int(0)))*(sections+1)
}

// setLimit gives the tier another limit, in bytes, and lets go what is over it.
// Rows that are being read are freed when that is done.
func (w *warmTier) setLimit(limit int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = limit
	w.makeRoom(0, 0)
}

// add keeps a copy of a page whose file a tier has just stored or given. rows are
// the layout's buffer, its gaps zero. A page that finds no room is not kept.
func (w *warmTier) add(info tier.Info, lv *level, h *pagefile.Header, rows []byte, placeable bool) {
	p := w.reserve(info, lv, h, placeable, true)
	if p == nil {
		return
	}
	if p.rows == nil {
		p.rows = allocRows(len(rows))
	}
	copy(p.rows, rows)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.publish(p, w.order.PushFront)
}

// addBehind is add for a page that nobody has asked for: it takes room that is
// free, and is the first to go. read puts its rows where they stay. It reports
// whether the page is here, and returns the error of read.
func (w *warmTier) addBehind(info tier.Info, lv *level, h *pagefile.Header, placeable bool, read func(rows []byte) error) (bool, error) {
	if w.confirm(info, lv) {
		return true, nil
	}
	p := w.reserve(info, lv, h, placeable, false)
	if p == nil {
		return w.has(info.Name), nil
	}
	p.rows = allocRows(h.Layout.Size())
	var err error
	if p.rows != nil {
		err = read(p.rows)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.letGo(p)
		w.free(p)
		return false, err
	}
	return w.publish(p, w.order.PushBack), nil
}

// has reports whether a page is here or being added.
func (w *warmTier) has(name pagefile.Name) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pages[name] != nil
}

// publish lets a page be served from now on, with push saying where it comes in
// the order. It reports false for one that has lost its room, and frees it.
func (w *warmTier) publish(p *warmPage, push func(any) *list.Element) bool {
	if p.rows == nil || p.gone || w.closed || w.used > w.limit {
		w.letGo(p)
		w.free(p)
		return false
	}
	p.place = push(p)
	if p.place == w.order.Front() {
		w.serve(p)
	}
	if p.name.Class == pagefile.ClassTail {
		w.addTail(p)
	}
	w.clock.start()
	return true
}

// reserve makes room for a page and returns it without rows, or with those of
// one that was let go, to be overwritten. Without evict none is let go. It returns
// nil for a page that is here or being added, and when there is no room.
func (w *warmTier) reserve(info tier.Info, lv *level, h *pagefile.Header, placeable, evict bool) *warmPage {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pages[info.Name]; p != nil {
		p.level, p.seen, p.used = lv, w.now(), info.Used
		return nil
	}
	size := warmBytes(h)
	if w.closed || size > w.limit || !evict && w.used+size > w.limit {
		return nil
	}
	rows, ok := w.makeRoom(size, h.Layout.Size())
	if !ok {
		return nil
	}
	p := &warmPage{
		name: info.Name, rows: rows, bytes: info.Bytes, placeable: placeable,
		level: lv, seen: w.now(), used: info.Used,
		header: &pagefile.Header{
			Fingerprint: h.Fingerprint, Key: h.Key, Parent: h.Parent, Start: h.Start, PageTokens: h.PageTokens,
			Tokens: slices.Clone(h.Tokens), Media: slices.Clone(h.Media), Layout: h.Layout,
		},
	}
	w.pages[info.Name] = p
	w.used += size
	return p
}

// makeRoom lets pages go until size more bytes fit, and reports whether they do.
// Rows of rowBytes that became free on the way are handed out instead of freed.
func (w *warmTier) makeRoom(size int64, rowBytes int) (rows []byte, ok bool) {
	for w.used+size > w.limit {
		last := w.order.Back()
		if last == nil {
			break
		}
		p := last.Value.(*warmPage)
		w.letGo(p)
		if p.readers > 0 {
			continue
		}
		if rows == nil && rowBytes > 0 && len(p.rows) == rowBytes {
			rows, p.rows = p.rows, nil
		}
		w.free(p)
	}
	if w.used+size > w.limit {
		freeRows(rows)
		return nil, false
	}
	return rows, true
}

// letGo takes a page out of sight. Its rows stay, and stay counted, until free.
func (w *warmTier) letGo(p *warmPage) {
	p.gone = true
	if w.pages[p.name] == p {
		delete(w.pages, p.name)
	}
	if p.place == nil {
		return
	}
	w.order.Remove(p.place)
	p.place = nil
	if p.name.Class == pagefile.ClassTail {
		rest := slices.DeleteFunc(w.tails[p.name.Parent], func(o *warmPage) bool { return o == p })
		if w.tails[p.name.Parent] = rest; len(rest) == 0 {
			delete(w.tails, p.name.Parent)
		}
	}
}

// free gives a page's memory back.
func (w *warmTier) free(p *warmPage) {
	w.used -= warmBytes(p.header)
	freeRows(p.rows)
	p.rows = nil
}

// remove lets a page go and frees it unless somebody reads it.
func (w *warmTier) remove(p *warmPage) {
	filling := p.place == nil
	w.letGo(p)
	if p.readers == 0 && !filling {
		w.free(p)
	}
}

// addTail indexes a tail and removes those that it makes superfluous: what it
// extends, and the ones served least recently beyond maxTails.
func (w *warmTier) addTail(p *warmPage) {
	parent, h := p.name.Parent, p.header
	w.tails[parent] = append(w.tails[parent], p)
	for _, old := range slices.Clone(w.tails[parent]) {
		n := len(old.header.Tokens)
		if n < len(h.Tokens) && pagefile.CommonPrefix(old.header.Tokens, old.header.Media, h.Tokens, h.Media) == n {
			w.remove(old)
		}
	}
	for len(w.tails[parent]) > maxTails {
		w.remove(slices.MinFunc(w.tails[parent], func(a, b *warmPage) int { return cmp.Compare(a.served, b.served) }))
	}
}

func (w *warmTier) serve(p *warmPage) {
	w.served++
	p.served = w.served
	w.order.MoveToFront(p.place)
}

// pin returns a page to read from until unpin, nil when it is not here.
func (w *warmTier) pin(name pagefile.Name) *warmPage {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pages[name]
	if p == nil || p.place == nil {
		return nil
	}
	p.readers++
	return p
}

func (w *warmTier) unpin(p *warmPage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.readers--; p.gone && p.readers == 0 {
		w.free(p)
	}
}

// noteServed makes a page the last to go, and returns where its file is and how
// recently that was used; from now on it counts as used now.
func (w *warmTier) noteServed(p *warmPage) (lv *level, used time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.gone {
		w.serve(p)
	}
	lv, used = p.level, p.used
	if now := w.now(); now.Sub(used) >= touchEvery || tier.Beyond(used, now) {
		p.used = now
	}
	return lv, used
}

// fresh describes the file of a page that may be served without looking for it.
func (w *warmTier) fresh(name pagefile.Name) (tier.Info, *level, bool) {
	if w == nil {
		return tier.Info{}, nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pages[name]
	if p == nil || p.place == nil || w.now().Sub(p.seen) >= warmLease {
		return tier.Info{}, nil, false
	}
	return tier.Info{Name: name, Bytes: p.bytes, Used: p.used}, p.level, true
}

// confirm notes that a tier has a page's file, and reports whether the page is
// here.
func (w *warmTier) confirm(info tier.Info, lv *level) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pages[info.Name]
	if p == nil || p.place == nil {
		return false
	}
	p.level, p.seen, p.used = lv, w.now(), info.Used
	return true
}

// drop forgets a page whose file is gone.
func (w *warmTier) drop(name pagefile.Name) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pages[name]; p != nil {
		w.remove(p)
	}
}

// tailsOf returns the tails of a parent that are here.
func (w *warmTier) tailsOf(parent pagefile.Key) []*warmPage {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tails[parent])
}

// unseen returns the names of pages whose files were last seen long ago.
func (w *warmTier) unseen() []pagefile.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []pagefile.Name
	for name, p := range w.pages {
		if p.place != nil && w.now().Sub(p.seen) >= warmSweepAge {
			names = append(names, name)
		}
	}
	return names
}

func (w *warmTier) stats() TierStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := TierStats{Bytes: w.used}
	for e := w.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*warmPage).name.Class == pagefile.ClassPage {
			st.Pages++
		} else {
			st.Tails++
		}
	}
	return st
}

// holds reports whether any page is here.
func (w *warmTier) holds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pages) > 0
}

// close lets everything go and stops the clock.
func (w *warmTier) close() {
	w.mu.Lock()
	w.closed = true
	for e := w.order.Back(); e != nil; e = w.order.Back() {
		w.remove(e.Value.(*warmPage))
	}
	w.mu.Unlock()
	w.clock.stop()
}
