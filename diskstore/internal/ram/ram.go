package ram

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
	// Lease is how long a page is served from memory without looking whether
	// a tier still has its file. It bounds for how long a page that somebody
	// deleted can still be used.
	Lease = 10 * time.Second

	// UnseenAge is how long a page that nobody asks for stays in memory before
	// its file is looked for.
	UnseenAge = time.Minute
)

// Tier keeps decoded pages in memory, as many as its limit takes, and lets
// those go first that were served least recently. A nil Tier holds nothing.
type Tier struct {
	opt Options

	mu     sync.Mutex
	now    func() time.Time
	limit  int64                   // bytes
	used   int64                   // bytes of all pages, those that were let go and are still read included
	pages  map[pagefile.Name]*Page // those being filled included
	tails  map[pagefile.Key][]*Page
	order  list.List // of pages that can be served, the one served last in front
	served uint64    // counts what was put in front
	closed bool

	clock clock
}

// File is the file that a page in memory is a copy of.
type File struct {
	tier.Info
	Tier string // Local or Remote, where the file was last seen

	// Placeable says that the page's rows can also be used where they lie on disk.
	Placeable bool
}

// Page is a page that can be served. Its exported fields never change, until the last
// reader of a page that was let go unpins it.
type Page struct {
	Name      pagefile.Name
	Header    *pagefile.Header // without its section table
	Rows      []byte           // the layout's buffer
	FileBytes int64
	Placeable bool // as File says

	// The others belong to Tier.mu.
	tier    string    // where the file was last seen
	seen    time.Time // when
	used    time.Time // the file's recency
	served  uint64
	readers int  // who copy from Rows now
	gone    bool // let go; the last reader frees the rows
	place   *list.Element
}

// pageBytes is what a page takes beside its rows, tokens, media and layout:
// itself, its header, its place in the order and in two maps.
const pageBytes = int64(unsafe.Sizeof(Page{}) + unsafe.Sizeof(pagefile.Header{}) + unsafe.Sizeof(list.Element{}) +
	2*(unsafe.Sizeof(pagefile.Name{})+unsafe.Sizeof((*Page)(nil))))

// Options says what a Tier takes over from its store.
type Options struct {
	MaxTails   int           // of one parent that are kept
	TouchEvery time.Duration // how much later a page must be served for its file to count as used anew
	Tick       func() bool   // called every 2 s while pages are held, until it returns false
}

// New returns a tier with a limit of 0 bytes.
func New(opt Options) *Tier {
	return &Tier{
		opt: opt, now: time.Now, clock: clock{tick: opt.Tick},
		pages: make(map[pagefile.Name]*Page), tails: make(map[pagefile.Key][]*Page),
	}
}

// SetClock replaces the clock of a test.
func (t *Tier) SetClock(now func() time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = now
}

// Bytes is what a page with this header takes in memory.
func Bytes(h *pagefile.Header) int64 {
	sections := int64(h.Layout.Len())
	return pageBytes + int64(h.Layout.Size()) +
		4*int64(len(h.Tokens)) + int64(unsafe.Sizeof(pagefile.Media{}))*int64(len(h.Media)) +
		int64(unsafe.Sizeof(pagefile.Section{}))*sections + int64(unsafe.Sizeof(int(0)))*(sections+1)
}

// SetLimit gives the tier another limit, in bytes, and lets go what is over it.
// Rows that are being read are freed when that is done.
func (t *Tier) SetLimit(limit int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
	t.makeRoomLocked(0, 0)
}

// Add keeps a copy of a page whose file a tier has just stored or given. rows are
// the layout's buffer, its gaps zero. A page that finds no room is not kept.
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

// AddBehind is Add for a page that nobody has asked for: it takes room that is
// free, and is the first to go. read puts its rows where they stay. It reports
// whether there was room, and returns the error of read. A tail that is one too many
// goes at once.
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

// Has reports whether a page is here or being added.
func (t *Tier) Has(name pagefile.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pages[name] != nil
}

// publishLocked lets a page be served from now on, with push saying where it comes in
// the order. It reports false for one that has lost its room, and frees it.
func (t *Tier) publishLocked(p *Page, push func(any) *list.Element) bool {
	if p.Rows == nil || p.gone || t.closed || t.used > t.limit {
		t.letGoLocked(p)
		t.freeLocked(p)
		return false
	}
	p.place = push(p)
	if p.place == t.order.Front() {
		t.serveLocked(p)
	}
	if p.Name.Class == pagefile.ClassTail {
		t.addTailLocked(p)
	}
	t.clock.start()
	return true
}

// reserve makes room for a page and returns it without rows, or with those of
// one that was let go, to be overwritten. Without evict none is let go. It returns
// nil for a page that is here or being added, and when there is no room.
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
		Name: file.Name, Rows: rows, FileBytes: file.Bytes, Placeable: file.Placeable,
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

// makeRoomLocked lets pages go until size more bytes fit, and reports whether they do.
// Rows of rowBytes that became free on the way are handed out instead of freed.
func (t *Tier) makeRoomLocked(size int64, rowBytes int) (rows []byte, ok bool) {
	for t.used+size > t.limit {
		last := t.order.Back()
		if last == nil {
			break
		}
		p := last.Value.(*Page)
		t.letGoLocked(p)
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

// letGoLocked takes a page out of sight. Its rows stay, and stay counted, until freeLocked.
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
		rest := slices.DeleteFunc(t.tails[p.Name.Parent], func(o *Page) bool { return o == p })
		if t.tails[p.Name.Parent] = rest; len(rest) == 0 {
			delete(t.tails, p.Name.Parent)
		}
	}
}

// freeLocked gives a page's memory back.
func (t *Tier) freeLocked(p *Page) {
	t.used -= Bytes(p.Header)
	freeRows(p.Rows)
	p.Rows = nil
}

// removeLocked lets a page go and frees it unless somebody reads it.
func (t *Tier) removeLocked(p *Page) {
	filling := p.place == nil
	t.letGoLocked(p)
	if p.readers == 0 && !filling {
		t.freeLocked(p)
	}
}

// addTailLocked indexes a tail and removes those that it makes superfluous: what it
// extends, and the ones served least recently beyond MaxTails.
func (t *Tier) addTailLocked(p *Page) {
	parent, h := p.Name.Parent, p.Header
	t.tails[parent] = append(t.tails[parent], p)
	for _, old := range slices.Clone(t.tails[parent]) {
		n := len(old.Header.Tokens)
		if n < len(h.Tokens) && pagefile.CommonPrefix(old.Header.Tokens, old.Header.Media, h.Tokens, h.Media) == n {
			t.removeLocked(old)
		}
	}
	for len(t.tails[parent]) > t.opt.MaxTails {
		t.removeLocked(slices.MinFunc(t.tails[parent], func(a, b *Page) int { return cmp.Compare(a.served, b.served) }))
	}
}

// serveLocked puts a page in front.
func (t *Tier) serveLocked(p *Page) {
	t.served++
	p.served = t.served
	t.order.MoveToFront(p.place)
}

// Pin returns a page to read from until Unpin, nil when it is not here.
func (t *Tier) Pin(name pagefile.Name) *Page {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[name]
	if p == nil || p.place == nil {
		return nil
	}
	p.readers++
	return p
}

// Unpin ends what Pin began.
func (t *Tier) Unpin(p *Page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.readers--; p.gone && p.readers == 0 {
		t.freeLocked(p)
	}
}

// Served makes a page the last to go, and returns its file, with the recency that it had;
// from now on it counts as used now.
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

// Fresh returns the file of a page that may be served without looking for it.
func (t *Tier) Fresh(name pagefile.Name) (File, bool) {
	if t == nil {
		return File{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[name]
	if p == nil || p.place == nil || t.now().Sub(p.seen) >= Lease {
		return File{}, false
	}
	return p.fileLocked(), true
}

// Confirm notes that a tier has a page's file, and reports whether the page is
// here.
func (t *Tier) Confirm(file File) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[file.Name]
	if p == nil || p.place == nil {
		return false
	}
	t.sawLocked(p, file)
	return true
}

// sawLocked notes where a page's file was seen, and its recency.
func (t *Tier) sawLocked(p *Page, file File) {
	p.tier, p.seen, p.used = file.Tier, t.now(), file.Used
}

// fileLocked returns the file of a page as it was last seen.
func (p *Page) fileLocked() File {
	return File{Info: tier.Info{Name: p.Name, Bytes: p.FileBytes, Used: p.used}, Tier: p.tier, Placeable: p.Placeable}
}

// Drop forgets a page whose file is gone.
func (t *Tier) Drop(name pagefile.Name) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pages[name]; p != nil {
		t.removeLocked(p)
	}
}

// TailsOf returns the tails of a parent that are here.
func (t *Tier) TailsOf(parent pagefile.Key) []*Page {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.tails[parent])
}

// Unseen returns the names of pages whose files were last seen long ago.
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

// Stats counts what a tier holds.
type Stats struct {
	Bytes, Limit int64
	Pages, Tails int // that can be served
}

// Stats counts what the tier holds now.
func (t *Tier) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := Stats{Bytes: t.used, Limit: t.limit}
	for e := t.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*Page).Name.Class == pagefile.ClassPage {
			st.Pages++
		} else {
			st.Tails++
		}
	}
	return st
}

// Ticking reports whether Tick is going to be called.
func (t *Tier) Ticking() bool { return t.clock.going() }

// Holds reports whether any page is here.
func (t *Tier) Holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pages) > 0
}

// Close lets everything go and stops the clock.
func (t *Tier) Close() {
	t.mu.Lock()
	t.closed = true
	for e := t.order.Back(); e != nil; e = t.order.Back() {
		t.removeLocked(e.Value.(*Page))
	}
	t.mu.Unlock()
	t.clock.stop()
}
