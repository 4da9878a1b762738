package kvcache

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// newDiskStore opens a page store on disk with pages of 8 tokens.
func newDiskStore(t testing.TB, root string, edit ...func(*diskstore.Options)) *diskstore.Store {
	opts := diskstore.Options{Fingerprint: pagefile.Key{1}, PageTokens: 8, Local: diskstore.TierConfig{Root: root}}
	for _, e := range edit {
		e(&opts)
	}
	store, err := diskstore.Open(t.Context(), opts)
	require.NoError(t, err)
	return store
}

// memStore is a page store in memory that checks every row put into it, and so finds pages
// that were copied too early, too late or from wrong cells.
type memStore struct {
	t testing.TB

	mu      sync.Mutex
	root    pagefile.Key
	pages   map[pagefile.Key]*pagefile.Page
	tails   map[pagefile.Key][]*pagefile.Page
	cold    coldPages
	hold    chan struct{} // Put waits for it when set
	fail    error
	failing map[int]error                                 // by number of the page
	enter   func(op string)                               // called before an operation; nil: nothing
	refuse  func(page *pagefile.Page) error               // an error of Put, also of one that hangs; nil: none
	refused int                                           // pages, by refuse
	kept    func(page *pagefile.Page)                     // called when a page can be read, before Put returns
	found   func(ctx context.Context, f *diskstore.Found) // called before Find returns
	below   map[int]bool                                  // by number of the page: in a tier where Has does not look
	wrote   []int                                         // numbers of full pages
	readErr map[int]error                                 // by number of the page

	setsAside bool // a page with one of losingErrors is gone once it was read
	reads     int
	onRead    func(page int)
	puts      int
	ifRoom    int // PutIfRoom
	closed    bool

	private  bool             // a page has text of a private request
	windowed bool             // group 0 has a window
	wrong    []string         // rows that do not follow from their tokens
	orphans  []*pagefile.Page // pages without a known history: their rows are not checked yet
	read     map[uint16]int   // number of rows read, by group
}

func newMemStore(t testing.TB) *memStore {
	s := &memStore{t: t, read: make(map[uint16]int), pages: make(map[pagefile.Key]*pagefile.Page), tails: make(map[pagefile.Key][]*pagefile.Page)}
	s.root[0] = 1
	if _, outer := t.(*testing.T); outer {
		t.Cleanup(func() { s.requireRight(t) })
	}
	return s
}

// dropsRows says that group 0 has a window.
func (s *memStore) dropsRows() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windowed = true
}

// history is the tokens before a page.
func (s *memStore) history(parent pagefile.Key) []int32 {
	if parent == s.root {
		return nil
	}
	page := cmp.Or(s.pages[parent], s.cold.pages[parent])
	if page == nil {
		return nil
	}
	return append(s.history(page.Parent), page.Tokens...)
}

// checkAll checks a page, and then orphans that can be checked now: a page that failed is
// written after the pages that continue it.
func (s *memStore) checkAll(page *pagefile.Page) {
	s.orphans = append(s.orphans, page)
	for n := len(s.orphans) + 1; len(s.orphans) < n; {
		n = len(s.orphans)
		s.orphans = slices.DeleteFunc(s.orphans, s.check)
	}
}

// check checks a page's rows. check reports whether the page's history is known.
func (s *memStore) check(page *pagefile.Page) bool {
	before := s.history(page.Parent)
	if len(before) != int(page.Start) {
		return false
	}
	for i, sec := range page.Layout.Sections() {
		if sec.Kind == pagefile.KindCell {
			continue
		}
		if !sec.Kind.PerToken() {
			if !bytes.Equal(stateAfter(append(slices.Clone(before), page.Tokens...))[sec.Layer-2], page.Layout.Rows(page.Payload, i)) {
				s.wrong = append(s.wrong, fmt.Sprintf("stored page of %d tokens at %d: state of layer %d", len(page.Tokens), page.Start, sec.Layer))
				return true
			}
			continue
		}
		n := int(sec.RowBytes)
		window := int32(math.MaxInt32)
		if s.windowed && sec.Group == 0 {
			window = fakeWindow
		}
		want := wantRows(section{int(sec.Layer), sec.Kind == pagefile.KindV}, window, append(slices.Clone(before), page.Tokens...), n)
		rows := page.Layout.Rows(page.Payload, i)
		for j := range page.Tokens {
			if !bytes.Equal(want[int(page.Start)+j], rows[j*n:(j+1)*n]) {
				s.wrong = append(s.wrong, fmt.Sprintf("stored page of %d tokens at %d: row %d of group %d layer %d %v",
					len(page.Tokens), page.Start, j, sec.Group, sec.Layer, sec.Kind))
				return true
			}
		}
	}
	return true
}

// requireRight fails when a row that was put did not follow from its tokens.
func (s *memStore) requireRight(t require.TestingT) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.wrong)
}

func (s *memStore) Put(ctx context.Context, p *pagefile.Page) error {
	s.entered("put")
	if s.refuse != nil {
		if err := s.refuse(p); err != nil {
			s.refused++
			return err
		}
	}
	err := s.put(ctx, p)
	if s.kept != nil {
		s.kept(p)
	}
	return err
}

func (s *memStore) put(ctx context.Context, p *pagefile.Page) error {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if err := cmp.Or(s.fail, s.failing[int(p.Start)/8]); err != nil {
		return err
	}
	s.private = s.private || slices.ContainsFunc(p.Tokens, isPrivate)
	page := *p
	page.Payload = slices.Clone(p.Payload)
	key := pagefile.ChainKey(p.Parent, p.Tokens, p.Media)
	if len(p.Tokens) == 8 {
		if !s.hasLocked(key, p) {
			s.pages[key] = &page
			s.wrote = append(s.wrote, int(p.Start)/8)
		}
	} else {
		s.tails[p.Parent] = append(s.tails[p.Parent], &page)
	}
	s.checkAll(&page)
	return nil
}

// putCount is the number of pages that the store was asked to keep. The writer may ask at any time.
func (s *memStore) putCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

// hasLocked reports whether a full page is stored with these sections: Store.Put writes none that is.
func (s *memStore) hasLocked(key pagefile.Key, p *pagefile.Page) bool {
	old := s.pages[key]
	if old == nil {
		return false
	}
	_, ok := p.Layout.Within(old.Layout)
	return ok
}

func (s *memStore) PutIfRoom(ctx context.Context, p *pagefile.Page) error {
	s.mu.Lock()
	s.ifRoom++
	s.mu.Unlock()
	return s.Put(ctx, p)
}

func (s *memStore) Has(key pagefile.Key) bool {
	s.entered("has")
	s.mu.Lock()
	defer s.mu.Unlock()
	page := s.pages[key]
	return page != nil && !s.below[int(page.Start)/8]
}

func (s *memStore) AnyOf(_ context.Context, keys []pagefile.Key) (key pagefile.Key, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(keys, func(key pagefile.Key) bool { return s.pages[key] != nil })
	if i < 0 {
		return key, false
	}
	return keys[i], true
}

func (s *memStore) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	s.entered("find")
	found := s.lookUp(p)
	if s.found != nil {
		s.found(ctx, &found)
	}
	return found
}

func (s *memStore) lookUp(p diskstore.Prompt) (found diskstore.Found) {
	chain := func(lossy bool) []diskstore.Ref {
		s.mu.Lock()
		defer s.mu.Unlock()
		if lossy {
			s.cold.looked++
		}
		return s.chainLocked(p.Parent, p.Start, p.Tokens, p.Media, lossy)
	}
	endOf := func(refs []diskstore.Ref) int {
		if len(refs) == 0 {
			return p.Start
		}
		return min(p.Limit, refs[len(refs)-1].End())
	}
	if p.Limit == 0 {
		p.Limit = p.Start + len(p.Tokens)
	}
	if p.Forms == diskstore.AnyForm {
		return diskstore.Found{Mixed: chain(true)}
	}
	found.Exact = chain(false)
	if n := len(found.Exact); n > 0 {
		last := found.Exact[n-1]
		p.Media = pagefile.WithReaches(p.Media, last.Media, last.Start, last.Tokens)
	}
	found.Media = p.Media
	if least := max(p.Beyond, endOf(found.Exact)) + 8; p.Forms == diskstore.ExactFirst && least <= p.Limit {
		if mixed := chain(true); endOf(mixed) >= least {
			found.Mixed = mixed
		}
	}
	if p.State == nil {
		return found
	}
	for i := len(found.Exact) - 1; i >= 0; i-- {
		ref := found.Exact[i]
		if int(ref.Start)+ref.Stored <= p.Beyond {
			break
		}
		var ends []diskstore.Ref
		if int(ref.Start) < p.Limit {
			ends = s.tailsWithin(ref.Parent, int(ref.Start), p.Tokens[int(ref.Start)-p.Start:p.Limit-p.Start], p.Media)
		}
		if ref.Whole() {
			ends = slices.Insert(ends, 0, ref)
		}
		for _, end := range ends {
			if end.End() <= p.Beyond || end.End() > p.Limit || !p.State(end.End()) {
				continue
			}
			if err := s.take(end); err != nil {
				found.Unread = append(found.Unread, diskstore.Unread{Ref: end, Err: err})
			} else if s.hasState(end) {
				found.State = append(found.Exact[:i:i], end)
				return found
			}
		}
	}
	return found
}

// chainLocked looks pages up; with lossy also lossy ones, where there are no exact ones.
func (s *memStore) chainLocked(parent pagefile.Key, base int, tokens []int32, media []pagefile.Media, lossy bool) []diskstore.Ref {
	var refs []diskstore.Ref
	start := 0
	for start+8 <= len(tokens) {
		key := pagefile.ChainKey(parent, tokens[start:start+8], pagefile.MediaWithin(media, base+start, 8))
		exact := s.pages[key] != nil
		if !exact && (!lossy || s.cold.pages[key] == nil) {
			break
		}
		refs = append(refs, diskstore.Ref{Key: key, Parent: parent, Start: uint32(base + start), Tokens: 8, Stored: 8, Lossy: !exact, Tier: "local", Bytes: 1})
		parent, start = key, start+8
	}
	best, near := 0, false
	var last *pagefile.Page
	after := slices.Clone(s.tails[parent]) // of equal ones a tail is preferred
	for _, page := range s.pages {
		if page.Parent == parent {
			after = append(after, page)
		}
	}
	exact := len(after)
	if lossy {
		after = append(after, s.cold.after(parent)...)
	}
	for i, candidate := range after {
		rest := tokens[start:min(start+8, len(tokens))]
		n := pagefile.CommonPrefix(candidate.Tokens, candidate.Media, rest, pagefile.MediaWithin(media, base+start, len(rest)))
		if n > best {
			best, last, near = n, candidate, i >= exact
		}
	}
	if last != nil {
		key := pagefile.ChainKey(parent, last.Tokens, last.Media)
		refs = append(refs, diskstore.Ref{Key: key, Parent: parent, Start: uint32(base + start), Tokens: best, Stored: len(last.Tokens), Tail: len(last.Tokens) < 8, Lossy: near, Media: last.Media, Tier: "local", Bytes: 1})
	}
	return refs
}

func (s *memStore) tailsWithin(parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refs []diskstore.Ref
	for _, tail := range s.tails[parent] {
		if n := len(tail.Tokens); n <= len(tokens) && slices.Equal(tail.Tokens, tokens[:n]) && slices.Equal(tail.Media, pagefile.MediaWithin(media, start, n)) {
			key := pagefile.ChainKey(parent, tail.Tokens, tail.Media)
			refs = append(refs, diskstore.Ref{Key: key, Parent: parent, Start: uint32(start), Tokens: n, Stored: n, Tail: true, Tier: "local", Bytes: 1})
		}
	}
	slices.SortFunc(refs, func(a, b diskstore.Ref) int { return b.Tokens - a.Tokens })
	return refs
}

// hasState reports whether a page is stored with the state after it.
func (s *memStore) hasState(ref diskstore.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := s.findLocked(ref)
	return page != nil && page.Layout.HasState()
}

// findLocked is the page of a ref, or nil.
func (s *memStore) findLocked(ref diskstore.Ref) *pagefile.Page {
	if ref.Lossy {
		return s.cold.find(ref)
	}
	page := s.pages[ref.Key]
	for _, tail := range s.tails[ref.Parent] {
		if ref.Tail && pagefile.ChainKey(ref.Parent, tail.Tokens, tail.Media) == ref.Key {
			page = tail
		}
	}
	return page
}

func (s *memStore) Read(_ context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.entered("read")
	s.mu.Lock()
	s.reads++
	onRead := s.onRead
	s.mu.Unlock()
	if onRead != nil {
		onRead(int(ref.Start) / 8)
	}
	if err := s.take(ref); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	page := s.findLocked(ref)
	if page == nil {
		return tier.ErrNotFound
	}
	if !slices.Equal(page.Tokens[:ref.Tokens], tokens) {
		return errors.New("asked for other tokens")
	}
	stored := page.Layout.Sections()
	for i, sec := range layout.Sections() {
		from := slices.Index(stored, sec)
		if from < 0 {
			return pagefile.ErrMismatch
		}
		copy(layout.Rows(into.Rows, i), page.Layout.Rows(page.Payload, from))
		if sec.Kind == pagefile.KindK {
			s.read[sec.Group] += layout.Tokens()
		}
	}
	return nil
}

// take returns the error of reading a page, or its header. The page may be set aside.
func (s *memStore) take(ref diskstore.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.readErr[int(ref.Start)/8]
	if s.setsAside && slices.ContainsFunc(losingErrors, func(lost error) bool { return errors.Is(err, lost) }) {
		if ref.Lossy {
			delete(s.cold.pages, ref.Key)
		} else {
			delete(s.pages, ref.Key)
		}
	}
	return err
}

// losingErrors are errors after which a page is not stored any more.
var losingErrors = []error{pagefile.ErrDamaged, syscall.EIO, tier.ErrNotFound}

func (s *memStore) readsWholePages() {}

// inPieces makes a store in memory pass on the sections of pages that its Read returns.
func inPieces(t *TieredCausal) *TieredCausal {
	if _, ok := t.store.Store.(interface{ readsWholePages() }); ok {
		t.store.Store = pieceStore{t.store.Store}
	}
	return t
}

// pieceStore passes sections on in any order, several at the same time, and before an error
// sections of which nobody may see anything.
type pieceStore struct{ Store }

func (s pieceStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	if into.Use == nil {
		return s.Store.Read(ctx, ref, tokens, layout, into)
	}
	buf := make([]byte, layout.Size())
	err := s.Store.Read(ctx, ref, tokens, layout, diskstore.Into{Rows: buf, Gently: into.Gently})
	order := rand.Perm(layout.Len())
	if err != nil {
		order = order[:len(order)/2]
		for i := range buf {
			buf[i] = 0x5a
		}
	}
	var group errgroup.Group
	for _, i := range order {
		group.Go(func() error {
			rows := slices.Clone(layout.Rows(buf, i))
			defer clear(rows) // nobody may keep them
			return into.Use(i, rows)
		})
	}
	return cmp.Or(err, group.Wait())
}

func (s *memStore) Flush(context.Context) error {
	s.entered("flush")
	return nil
}

func (s *memStore) Close() error {
	s.entered("close")
	s.closed = true
	return nil
}

func (s *memStore) entered(op string) {
	if s.enter != nil {
		s.enter(op)
	}
}
