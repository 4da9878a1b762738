package diskstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// Into says what becomes of the rows of a page that is read.
type Into struct {
	// Rows, of layout.Size() bytes, is filled with the page. After an error its content is undefined.
	Rows []byte

	// Use, where Rows is nil, gets each section as soon as the section is checked: memory for a
	// few pieces is enough, and a piece is used while it is in the processor's cache. Sections
	// come in any order, also at the same time, and may come several times, when the page is read
	// again or from another tier; the last time counts. Use does not keep the rows. Only after
	// Read has returned nil the page is good, and after Read has returned Use is not called. After
	// an error of Use, which Read returns, the rest of the page is not read.
	//
	// With Options.RAM a page comes whole into memory first, where it is kept.
	Use func(i int, rows []byte) error

	// Placed, beside Use, gets the place of the rows. Nil means that the caller has no use for it.
	Placed *Placed

	// Gently reads on one processor and leaves the others to slots that compute. The rows are the same.
	Gently bool
}

// Read reads sections of a page, laid out by layout: all sections of the page, or some of them in the same
// order. tokens are the ref.Tokens tokens that the caller expects at ref.Start; layout is for ref.Stored
// tokens. Of a tail with ref.Tokens < ref.Stored only the first ref.Tokens rows of each section belong to the
// caller's sequence; sections that are not rows belong to another sequence.
//
// Header, fingerprint, key, parent, position, tokens, footer, and every byte of the read sections are checked
// before Read returns nil. A page in memory was checked when it was added. Of a Lossy ref, the rows are those
// that its encoding gives back. If the tier of ref cannot return the page, Read tries the other tiers.
//
// Read returns tier.ErrNotFound; pagefile.ErrDamaged, with the file in quarantine or not used again;
// pagefile.ErrMismatch for a well-formed page other than the described one; pagefile.ErrInvalidPage for
// arguments that do not fit together; tier.ErrTierDown, tier.ErrTierTimeout, tier.ErrClosed, ctx's error or
// an error of the filesystem. After any of them the caller computes the page.
func (s *Store) Read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, into Into) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer s.traffic.Enter()()
	return s.reader.read(ctx, wanted{ref, tokens, layout}, into)
}

type reader struct {
	pages      *names.Pages
	pageTokens int
	codec      *pagefile.Codec
	tiers      levels
	ram        *memory
	chains     *recency.Chains
	mover      *move.Mover // nil without a remote tier
	behind     *work.Queue // of touches of remote pages
	now        func() time.Time
	counts     *counters
	ahead      readAhead

	sharing sharing
	whole   sync.Pool // *[]byte for whole pages on their way through memory
}

// wanted are the arguments of Read that say which page it is, and which sections.
type wanted struct {
	ref    Ref
	tokens []int32
	layout pagefile.Layout
}

func (r *reader) read(ctx context.Context, w wanted, into Into) error {
	if into.Use == nil {
		return r.readWhole(ctx, w, into, into.Rows)
	}
	if !r.ram.off() {
		buf := r.takeWhole(w.layout)
		defer r.putWhole(buf)
		err := r.readWhole(ctx, w, into, *buf)
		for i := 0; err == nil && i < w.layout.Len(); i++ {
			if err = into.Use(i, w.layout.Rows(*buf, i)); err != nil {
				into.Placed.drop()
			}
		}
		return err
	}
	if err := w.check(w.layout.Size()); err != nil {
		return err
	}
	page, err := r.readTiers(ctx, w, func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error {
		return pagefile.ReadSections(ctx, blob, h, sel, r.codecFor(into), func(i int, rows []byte) error {
			if err := into.Use(i, rows); err != nil {
				return &checked.UseError{Err: err}
			}
			return nil
		})
	})
	if err == nil && !into.Placed.take(page, w.layout) {
		page.blob.Close()
	}
	return err
}

// readWhole reads a page into buf, from memory, from a Read of the same page that runs, or from the tiers.
func (r *reader) readWhole(ctx context.Context, w wanted, into Into, buf []byte) error {
	if err := w.check(len(buf)); err != nil {
		return err
	}
	if r.fromRAM(ctx, w, buf, into.Placed != nil) {
		into.Placed.refuse(errors.New("it is in memory"))
		return nil
	}
	end := func(bool) {}
	if into.Placed == nil { // else the caller needs a file of its own
		var other *sharedRead
		if other, end = r.sharing.join(w.ref.name(r.pages), w, buf); other != nil {
			if other.copyTo(ctx, buf) {
				r.counts.hits.Add(1)
				r.counts.sharedHits.Add(1)
				r.counts.readBytes.Add(uint64(len(buf)))
				return nil
			}
			end = func(bool) {}
		}
	}
	page, err := r.readTiers(ctx, w, func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error {
		return pagefile.ReadPayload(ctx, blob, h, sel, r.codecFor(into), buf)
	})
	end(err == nil)
	if err != nil || into.Placed.take(page, w.layout) {
		return err
	}
	page.blob.Close()
	if w.layout.Equal(page.header.Layout) {
		r.ram.keep(page.level, page.blob.Info(), page.header, buf, page.level.name)
	}
	return nil
}

func (r *reader) codecFor(into Into) *pagefile.Codec {
	if into.Gently {
		return r.codec.Gently()
	}
	return r.codec
}

// takeWhole returns memory for a page, which the caller gives back with putWhole.
func (r *reader) takeWhole(layout pagefile.Layout) *[]byte {
	r.counts.wholeBytes.Add(int64(layout.Size()))
	if p, ok := r.whole.Get().(*[]byte); ok && cap(*p) >= layout.Size() {
		*p = (*p)[:layout.Size()]
		return p
	}
	buf := make([]byte, layout.Size())
	return &buf
}

func (r *reader) putWhole(buf *[]byte) {
	r.counts.wholeBytes.Add(-int64(len(*buf)))
	r.whole.Put(buf)
}

// check returns pagefile.ErrInvalidPage for arguments of Read that do not fit together.
func (w wanted) check(bytes int) error {
	ref, tokens, layout := w.ref, w.tokens, w.layout
	if len(tokens) != ref.Tokens || ref.Tokens < 1 || layout.Tokens() != ref.Stored || ref.Stored < ref.Tokens || bytes != layout.Size() {
		return fmt.Errorf("read page %v: %d of %d tokens wanted, have %d tokens, a layout for %d and %d bytes for %d: %w",
			ref.Key, ref.Tokens, ref.Stored, len(tokens), layout.Tokens(), bytes, layout.Size(), pagefile.ErrInvalidPage)
	}
	return nil
}

// load reads the wanted sections of a page's open file, and checks them.
type load func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error

// verified is a page's open file whose wanted sections were checked.
type verified struct {
	level  *level
	blob   tier.Blob
	header *pagefile.Header
}

// readTiers reads from the tiers and returns the open file. The caller closes the file.
func (r *reader) readTiers(ctx context.Context, w wanted, load load) (verified, error) {
	var worst error
	for _, lv := range r.tiers.from(w.ref.Tier) {
		page, err := r.readFrom(ctx, lv, w, load)
		if err == nil {
			r.counts.hits.Add(1)
			lv.hit(page.header.Fingerprint)
			lv.counts.hits.Add(1)
			r.ahead.used(w.ref.name(r.pages), r.ram.off())
			r.counts.readBytes.Add(uint64(w.layout.Size()))
			return page, nil
		}
		// Of two failures, one other than tier.ErrNotFound tells the caller more.
		if worst == nil || errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
		if ctx.Err() != nil || errors.Is(err, pagefile.ErrMismatch) || checked.NotUsed(err) {
			break
		}
	}
	if errors.Is(worst, tier.ErrNotFound) && !checked.NotUsed(worst) {
		r.counts.misses.Add(1)
	}
	return verified{}, fmt.Errorf("read page %v: %w", w.ref.Key, worst)
}

func (r *reader) readFrom(ctx context.Context, lv *level, w wanted, load load) (verified, error) {
	var header *pagefile.Header
	var kept *move.Kept
	blob, err := lv.checked.Open(ctx, w.ref.name(r.pages), func(blob tier.Blob) (err error) {
		if lv.far {
			kept.Drop()
			kept = r.mover.Keep(blob)
			blob = kept
		}
		header, err = r.readBlob(ctx, blob, w, load)
		return err
	})
	if err != nil {
		kept.Drop()
		return verified{}, err
	}
	info := blob.Info()
	if kept != nil {
		r.mover.Request(kept, w.ref.place())
	}
	r.touch(ctx, lv, w.ref, info.Used)
	return verified{level: lv, blob: blob, header: header}, nil
}

// readBlob checks an open file against the arguments and loads the wanted sections.
func (r *reader) readBlob(ctx context.Context, blob tier.Blob, w wanted, load load) (*pagefile.Header, error) {
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := r.pages.CheckPlace(h, blob.Info().Name); err != nil {
		return nil, err
	}
	if err := w.matches(h, r.pageTokens); err != nil {
		return nil, err
	}
	sel, _ := h.Select(w.layout)
	return h, load(ctx, blob, h, sel)
}

// matches returns pagefile.ErrMismatch unless h is the page that the caller of Read describes.
func (w wanted) matches(h *pagefile.Header, pageTokens int) error {
	ref := w.ref
	switch {
	case h.Parent != ref.Parent:
		return pagefile.Mismatch("parent is %v, want %v", h.Parent, ref.Parent)
	case h.Start != ref.Start:
		return pagefile.Mismatch("page starts at token %d, want %d", h.Start, ref.Start)
	case h.PageTokens != pageTokens:
		return pagefile.Mismatch("page size is %d tokens, want %d", h.PageTokens, pageTokens)
	case len(h.Tokens) != ref.Stored:
		return pagefile.Mismatch("page has %d tokens, want %d", len(h.Tokens), ref.Stored)
	case !slices.Equal(h.Tokens[:len(w.tokens)], w.tokens):
		return pagefile.Mismatch("tokens differ")
	}
	if _, ok := w.layout.Within(h.Layout); !ok {
		return pagefile.Mismatch("sections differ")
	}
	return nil
}

// Placed is the place of a page's rows on the local disk, for a caller that can read the rows
// from there again instead of writing a copy.
type Placed struct {
	// File is the page's file, open for reading only, and the caller's to close. File is the checked file,
	// and no store writes to that file again: its bytes stay the same after the page was evicted, demoted,
	// replaced or quarantined, and after the store was closed.
	File *os.File

	// Offsets are the offsets of the sections in File, in bytes, in the layout's order. The
	// rows of section i are the bytes from Offsets[i] on, token after token.
	Offsets []int64

	// Err says why File is nil although the page was read: it is compressed, not in the local tier,
	// or not in a file of the operating system.
	Err error
}

// take fills in the place of the layout's rows, and reports whether the place owns the page's file.
func (p *Placed) take(page verified, layout pagefile.Layout) bool {
	if p == nil {
		return false
	}
	file := osFile(page.blob)
	switch {
	case page.level.far:
		// A reader of rows in place waits for the tier at each read, and has no other copy.
		p.Err = errors.New("it is in the remote tier")
	case !page.header.Raw():
		p.Err = errors.New("it is compressed")
	case file == nil:
		p.Err = errors.New("it is in no file of the operating system")
	}
	if p.Err != nil {
		return false
	}
	at, _ := layout.Within(page.header.Layout)
	for _, i := range at {
		p.Offsets = append(p.Offsets, page.header.Sections[i].Offset)
	}
	p.File = file
	return true
}

// refuse notes why rows cannot be used in place.
func (p *Placed) refuse(because error) {
	if p != nil {
		p.Err = because
	}
}

// drop closes the file of rows that are not used.
func (p *Placed) drop() {
	if p != nil && p.File != nil {
		p.File.Close() // the file was only read
		*p = Placed{}
	}
}

// osFile returns the operating system's file that a blob reads, or nil for another kind of blob.
func osFile(b tier.Blob) *os.File {
	fb, ok := b.(*dir.Blob)
	if !ok {
		return nil
	}
	file, _ := fb.File.(*os.File)
	return file
}

// sharing lets concurrent Reads of one page share one read: each page is read, checked and
// decoded once and copied for the others.
type sharing struct {
	mu      sync.Mutex
	reading map[pagefile.Name]*sharedRead
}

// sharedRead is a running Read. Its arguments do not change.
type sharedRead struct {
	wanted
	of   *sharing
	rows []byte // the reader's buffer; the reader may change it after the last copy

	done chan struct{} // closed when the Read has ended
	good bool          // rows hold the page

	// Reads that wait for this one and then copy; sharing.mu guards both fields.
	waiting int
	left    chan struct{} // closed by the last waiting Read; nil before this Read has ended
}

// join returns a running Read of the same page, to take a copy from. Without one, join returns
// nil and a function, end, that the caller calls after its own Read; good says whether the
// caller's buffer holds the page. end returns after all copies are taken. A Read of the same
// file with other arguments is not shared, and join does not wait for it.
func (s *sharing) join(name pagefile.Name, w wanted, buf []byte) (other *sharedRead, end func(good bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.reading[name]; r != nil {
		same := r.ref.Parent == w.ref.Parent && r.ref.Start == w.ref.Start && r.layout.Equal(w.layout) && slices.Equal(r.tokens, w.tokens)
		if !same {
			return nil, func(bool) {}
		}
		r.waiting++
		return r, nil
	}
	r := &sharedRead{wanted: w, of: s, rows: buf, done: make(chan struct{})}
	if s.reading == nil {
		s.reading = make(map[pagefile.Name]*sharedRead)
	}
	s.reading[name] = r
	return nil, func(good bool) {
		s.mu.Lock()
		delete(s.reading, name) // no further Read joins
		r.good, r.left = good, make(chan struct{})
		if r.waiting == 0 {
			close(r.left)
		}
		s.mu.Unlock()
		close(r.done)
		<-r.left
	}
}

// leave ends the wait of one Read that joined.
func (r *sharedRead) leave() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.waiting--; r.waiting == 0 && r.left != nil {
		close(r.left)
	}
}

// copyTo waits for the end of the shared Read and copies its result. copyTo reports whether
// the copy is the page; otherwise the caller reads the page itself.
func (r *sharedRead) copyTo(ctx context.Context, buf []byte) bool {
	defer r.leave()
	select {
	case <-r.done:
	case <-ctx.Done():
		return false
	}
	if r.good {
		copy(buf, r.rows)
	}
	return r.good
}

// fresh reports whether a chain used at the given time counts as just used.
func (lv *level) fresh(used, now time.Time) bool { return recency.Fresh(used, now, lv.book.Horizon()) }

// touch touches the file of ref in a tier, whose recency in that tier is recent. The remote
// tier is touched in the background, in the order of reading.
func (r *reader) touch(ctx context.Context, lv *level, ref Ref, recent time.Time) {
	now := r.now()
	if ref.Ahead || lv.fresh(recency.Used(recent, ref.Start), now) {
		return
	}
	used := time.Unix(0, ref.at)
	if !lv.fresh(used, now) { // found long ago, or not as a chain
		used = now
	}
	name := ref.name(r.pages)
	if lv.far {
		type touch struct{ pagefile.Name }
		r.behind.Submit(touch{name}, func(ctx context.Context) {
			r.mover.Forward(ctx, name, recency.Of(used, ref.Start))
		})
		return
	}
	r.chains.Touch(ctx, name, ref.place(), used)
}

// ageClock returns the time by which files count as old enough to delete.
func (lv *level) ageClock(ctx context.Context) (time.Time, error) {
	now, err := recency.AgeClock(ctx, lv.tier, lv.now)
	if err != nil {
		return now, fmt.Errorf("tell the time of the filesystem of %s: %w", lv.where, err)
	}
	return now, nil
}

const (
	// hitsEvery bounds the time before a hit is recorded, together with others. Recording costs two syncs.
	hitsEvery = 5 * time.Second

	// remoteHitsEvery is the same for a remote tier, whose ledger all servers share. Any other
	// change of the ledger records the hits, too.
	remoteHitsEvery = 10 * time.Minute

	// hitsPatience bounds the time that Flush, or a job between two collections, waits for a
	// tier to record hits.
	hitsPatience = time.Second
)

// hit counts a page of a fingerprint that was read from a tier, or from memory as a copy of the tier's page.
func (lv *level) hit(fingerprint pagefile.Key) {
	lv.book.Hit(fingerprint)
	lv.recordIn(&lv.hitClock, hitsEvery, remoteHitsEvery, lv.recordHits)
}

// recordIn records something of the tier after some time, which differs in a remote tier. Calls before
// that have no effect.
func (lv *level) recordIn(clock *work.Once, every, remoteEvery time.Duration, record func(context.Context)) {
	if lv.far {
		every = remoteEvery
	}
	clock.Start(every, func() { lv.recording.Submit(clock, record) })
}

// recordHits records new hits. After a failure the next hit tries again.
func (lv *level) recordHits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	if lv.book.State().Hits && lv.answers() {
		_ = lv.book.Record(ctx)
	}
}
