package ram

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// Lease is the time for which a page is served from memory without a check that a tier
	// still has its file. Lease bounds the time for which a deleted page can still be used.
	Lease = 10 * time.Second

	// UnseenAge is the time for which an unused page stays in memory before the store checks its file.
	UnseenAge = time.Minute

	// tickEvery is the interval at which a tier with pages calls Tick.
	tickEvery = 2 * time.Second
)

// Tier keeps decoded pages in memory, up to its limit, and evicts the pages served least recently.
type Tier struct {
	opt Options

	mu     sync.Mutex
	now    func() time.Time
	limit  int64                   // bytes
	used   int64                   // bytes of all pages, evicted ones with readers included
	pages  map[pagefile.Name]*Page // pages being filled included
	tails  map[parent][]*Page
	order  list.List // of pages that can be served, the newest served in front
	inside int       // tails in order
	served uint64    // number of pages moved to the front so far
	counts Stats     // Stats sets Bytes, Limit, Pages and Tails
	closed bool

	clock   work.Once   // calls Options.Tick
	ticking atomic.Bool // a call of Tick is under way
}

// parent is the page that tails continue, or the beginning of a sequence, among the pages of a fingerprint.
type parent struct{ fingerprint, key pagefile.Key }

func parentOf(p *Page) parent { return parent{p.Name.Fingerprint, p.Header.Parent} }

// File is the file of which a page in memory is a copy.
type File struct {
	tier.Info
	Tier string // Local or Remote, the tier in which the file was last seen

	// From is the tier that the rows of a page being added were read from; "" for a page that was
	// just stored.
	From string

	// Placeable reports that the page's rows can also be used in place, on disk.
	Placeable bool
}

// Page is a page that can be served. Its exported fields stay unchanged until the last reader
// of an evicted page unpins the page.
type Page struct {
	Name      pagefile.Name
	Header    *pagefile.Header // without its section table
	Rows      []byte           // the layout's buffer
	FileBytes int64
	Placeable bool // as in File

	// Tier.mu guards the other fields.
	from    string    // as in File
	tier    string    // tier in which the file was last seen
	seen    time.Time // time at which the file was last seen
	used    time.Time // the file's recency
	served  uint64
	readers int  // readers of Rows
	gone    bool // evicted; the last reader frees the rows
	place   *list.Element
}

// pageBytes is the size of a page without its rows, tokens, media and layout: the Page, its
// header, and its entries in the order and in two maps.
const pageBytes = int64(unsafe.Sizeof(Page{}) + unsafe.Sizeof(pagefile.Header{}) + unsafe.Sizeof(list.Element{}) +
	2*(unsafe.Sizeof(pagefile.Name{})+unsafe.Sizeof((*Page)(nil))))

// Options are the settings that a Tier gets from its store.
type Options struct {
	MaxTails   int           // tails kept of one parent: a look-up compares each of them with the prompt
	TouchEvery time.Duration // a page served this much later than its recency counts as used again
	Tick       func() bool   // called every tickEvery while pages are held, until Tick returns false
}

// New returns a tier with a limit of 0 bytes.
func New(opt Options) *Tier {
	return &Tier{
		opt: opt, now: time.Now,
		pages: make(map[pagefile.Name]*Page), tails: make(map[parent][]*Page),
	}
}

// SetClock replaces the clock, for tests.
func (t *Tier) SetClock(now func() time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = now
}

// Bytes is the number of bytes that a page with this header needs in memory.
func Bytes(h *pagefile.Header) int64 {
	sections := int64(h.Layout.Len())
	return pageBytes + int64(h.Layout.Size()) +
		4*int64(len(h.Tokens)) + int64(unsafe.Sizeof(pagefile.Media{}))*int64(len(h.Media)) +
		int64(unsafe.Sizeof(pagefile.Section{}))*sections + int64(unsafe.Sizeof(int(0)))*(sections+1)
}

// SetLimit sets the tier's limit, in bytes, and evicts the pages beyond it. Rows with readers
// are freed when the last reader unpins them.
func (t *Tier) SetLimit(limit int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
	t.makeRoomLocked(0, 0)
}

// Add keeps a copy of a page whose file a tier has just stored or read. rows are the layout's
// buffer, with zero gaps. Without room, the page is not kept.
func (t *Tier) Add(file File, h *pagefile.Header, rows []byte) {
	p := t.reserve(file, h, true)
	if p == nil {
		return
	}
	if p.Rows == nil {
		p.Rows = allocRows(len(rows))
	}
	copy(p.Rows, rows)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.publishLocked(p, t.order.PushFront)
}

// AddBehind does as Add, for a page that no request has read: the page uses free room only and
// is the first to be evicted. read fills the page's rows. AddBehind reports whether there was
// room, and returns the error of read. A tail beyond MaxTails is removed at once.
func (t *Tier) AddBehind(file File, h *pagefile.Header, read func(rows []byte) error) (bool, error) {
	if t.Confirm(file) {
		return true, nil
	}
	p := t.reserve(file, h, false)
	if p == nil {
		return t.Has(file.Name), nil
	}
	p.Rows = allocRows(h.Layout.Size())
	var err error
	if p.Rows != nil {
		err = read(p.Rows)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.letGoLocked(p)
		t.freeLocked(p)
		return false, err
	}
	return t.publishLocked(p, t.order.PushBack), nil
}

// Has reports whether a page is in memory or being added.
func (t *Tier) Has(name pagefile.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pages[name] != nil
}

// publishLocked makes a page available, at the place in the order to which push adds it. For a
// page that has lost its room, publishLocked frees the page and returns false.
func (t *Tier) publishLocked(p *Page, push func(any) *list.Element) bool {
	if p.Rows == nil || p.gone || t.closed || t.used > t.limit {
		t.letGoLocked(p)
		t.freeLocked(p)
		return false
	}
	p.place = push(p)
	switch p.from {
	case tier.Local:
		t.counts.FromLocal++
	case tier.Remote:
		t.counts.FromRemote++
	default:
		t.counts.Stored++
	}
	if p.place == t.order.Front() {
		t.serveLocked(p)
	}
	if p.Name.Class == pagefile.ClassTail {
		t.inside++
		t.addTailLocked(p)
	}
	t.startClock()
	return true
}

// reserve makes room for a page and returns the page without rows, or with the rows of an
// evicted page, to be overwritten. Without evict no page is evicted. reserve returns nil for a
// page that is in memory or being added, and when there is no room.
func (t *Tier) reserve(file File, h *pagefile.Header, evict bool) *Page {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pages[file.Name]; p != nil {
		t.sawLocked(p, file)
		return nil
	}
	size := Bytes(h)
	if t.closed || size > t.limit || !evict && t.used+size > t.limit {
		return nil
	}
	rows, ok := t.makeRoomLocked(size, h.Layout.Size())
	if !ok {
		return nil
	}
	p := &Page{
		Name: file.Name, Rows: rows, FileBytes: file.Bytes, Placeable: file.Placeable, from: file.From,
		Header: &pagefile.Header{
			Fingerprint: h.Fingerprint, Key: h.Key, Parent: h.Parent, Start: h.Start, PageTokens: h.PageTokens,
			Tokens: slices.Clone(h.Tokens), Media: slices.Clone(h.Media), Layout: h.Layout,
		},
	}
	t.sawLocked(p, file)
	t.pages[file.Name] = p
	t.used += size
	return p
}

// makeRoomLocked evicts pages until size more bytes fit, and reports whether they fit. Rows of
// rowBytes bytes that become free are returned instead of freed.
func (t *Tier) makeRoomLocked(size int64, rowBytes int) (rows []byte, ok bool) {
	for t.used+size > t.limit {
		last := t.order.Back()
		if last == nil {
			break
		}
		p := last.Value.(*Page)
		t.letGoLocked(p)
		t.counts.Evicted++
		if p.readers > 0 {
			continue
		}
		if rows == nil && rowBytes > 0 && len(p.Rows) == rowBytes {
			rows, p.Rows = p.Rows, nil
		}
		t.freeLocked(p)
	}
	if t.used+size > t.limit {
		freeRows(rows)
		return nil, false
	}
	return rows, true
}

// letGoLocked evicts a page. The page's rows stay, and count, until freeLocked.
func (t *Tier) letGoLocked(p *Page) {
	p.gone = true
	if t.pages[p.Name] == p {
		delete(t.pages, p.Name)
	}
	if p.place == nil {
		return
	}
	t.order.Remove(p.place)
	p.place = nil
	if p.Name.Class == pagefile.ClassTail {
		t.inside--
		of := parentOf(p)
		rest := slices.DeleteFunc(t.tails[of], func(o *Page) bool { return o == p })
		if t.tails[of] = rest; len(rest) == 0 {
			delete(t.tails, of)
		}
	}
}

// freeLocked frees a page's memory.
func (t *Tier) freeLocked(p *Page) {
	t.used -= Bytes(p.Header)
	freeRows(p.Rows)
	p.Rows = nil
}

// removeLocked evicts a page and frees a page without readers.
func (t *Tier) removeLocked(p *Page) {
	filling := p.place == nil
	t.letGoLocked(p)
	if p.readers == 0 && !filling {
		t.freeLocked(p)
	}
}

// addTailLocked indexes a tail and removes the tails that become superfluous: shorter tails of
// the same tokens, and the tails served least recently beyond MaxTails.
func (t *Tier) addTailLocked(p *Page) {
	of, h := parentOf(p), p.Header
	t.tails[of] = append(t.tails[of], p)
	for _, old := range slices.Clone(t.tails[of]) {
		n := len(old.Header.Tokens)
		if n < len(h.Tokens) && pagefile.CommonPrefix(old.Header.Tokens, old.Header.Media, h.Tokens, h.Media) == n {
			t.removeLocked(old)
		}
	}
	for len(t.tails[of]) > t.opt.MaxTails {
		t.removeLocked(slices.MinFunc(t.tails[of], func(a, b *Page) int { return cmp.Compare(a.served, b.served) }))
	}
}

// serveLocked moves a page to the front.
func (t *Tier) serveLocked(p *Page) {
	t.served++
	p.served = t.served
	t.order.MoveToFront(p.place)
}

// Pin returns a page to read from until Unpin, or nil when the page is not in memory.
func (t *Tier) Pin(name pagefile.Name) *Page {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[name]
	if p == nil || p.place == nil {
		return nil
	}
	p.readers++
	return p
}

// Unpin releases a page that Pin returned.
func (t *Tier) Unpin(p *Page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.readers--; p.gone && p.readers == 0 {
		t.freeLocked(p)
	}
}

// Served makes a page the last to be evicted, sets the page's recency to now, and returns the
// page's file with the recency before.
func (t *Tier) Served(p *Page) File {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.gone {
		t.serveLocked(p)
	}
	file := p.fileLocked()
	if now := t.now(); now.Sub(p.used) >= t.opt.TouchEvery || tier.Beyond(p.used, now) {
		p.used = now
	}
	return file
}

// Fresh returns the file of a page that may be served without a check of that file.
func (t *Tier) Fresh(name pagefile.Name) (File, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[name]
	if p == nil || p.place == nil || t.now().Sub(p.seen) >= Lease {
		return File{}, false
	}
	return p.fileLocked(), true
}

// Confirm notes that a tier has a page's file, and reports whether the page is in memory.
func (t *Tier) Confirm(file File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[file.Name]
	if p == nil || p.place == nil {
		return false
	}
	t.sawLocked(p, file)
	return true
}

// sawLocked notes a page's file: its tier and its recency.
func (t *Tier) sawLocked(p *Page, file File) {
	p.tier, p.seen, p.used = file.Tier, t.now(), file.Used
}

// fileLocked returns the file of a page as last seen. Tier.mu is held.
func (p *Page) fileLocked() File {
	return File{Info: tier.Info{Name: p.Name, Bytes: p.FileBytes, Used: p.used}, Tier: p.tier, Placeable: p.Placeable}
}

// Drop removes a page whose file is gone.
func (t *Tier) Drop(name pagefile.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pages[name]; p != nil {
		t.removeLocked(p)
	}
}

// TailsOf returns the tails of a parent in memory, among the pages of a fingerprint.
func (t *Tier) TailsOf(fingerprint, key pagefile.Key) []*Page {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.tails[parent{fingerprint, key}])
}

// Unseen returns the names of pages whose files were last seen longer than UnseenAge ago.
func (t *Tier) Unseen() []pagefile.Name {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []pagefile.Name
	for name, p := range t.pages {
		if p.place != nil && t.now().Sub(p.seen) >= UnseenAge {
			names = append(names, name)
		}
	}
	return names
}

// Stats are the numbers of a tier's pages and bytes.
type Stats struct {
	Bytes, Limit int64
	Pages, Tails int // pages and tails that can be served

	// Pages and tails that were added since New: when they were stored, and when they were read
	// from a tier. Evicted counts those that left to make room.
	Stored, FromLocal, FromRemote, Evicted uint64
}

// Stats returns the tier's numbers now.
func (t *Tier) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.counts
	st.Bytes, st.Limit, st.Pages, st.Tails = t.used, t.limit, t.order.Len()-t.inside, t.inside
	return st
}

// Ticking reports whether a call of Tick is due or under way.
func (t *Tier) Ticking() bool { return t.clock.Due() || t.ticking.Load() }

// startClock lets Tick be called every tickEvery, from now on, until it returns false.
func (t *Tier) startClock() {
	if t.opt.Tick != nil {
		t.clock.Start(tickEvery, t.tick)
	}
}

// tick calls Tick, which may take long: pages that are added meanwhile start the clock again.
func (t *Tier) tick() {
	if t.ticking.Swap(true) {
		return // the call that is under way sees the added pages
	}
	again := t.opt.Tick()
	t.ticking.Store(false)
	if again {
		t.startClock()
	}
}

// Holds reports whether any page is in memory.
func (t *Tier) Holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pages) > 0
}

// Close removes every page and stops the clock.
func (t *Tier) Close() {
	t.mu.Lock()
	t.closed = true
	for e := t.order.Back(); e != nil; e = t.order.Back() {
		t.removeLocked(e.Value.(*Page))
	}
	t.mu.Unlock()
	t.clock.Stop()
}
