package diskstore

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// tinySections make pages of four blocks, so that a file can be torn inside.
var tinySections = []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16}, {Kind: pagefile.KindV, RowBytes: 8}}

// otherSections are the sections of the same page in another engine's layout.
var otherSections = []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16}, {Kind: pagefile.KindV, RowBytes: 8}, {Layer: 1, Kind: pagefile.KindK, RowBytes: 1}}

// tinyPage is the disk space of a page of tinySections, in bytes.
const tinyPage = 4 * 4096

// crashWorld is a store with two tiers on a filesystem in memory, and the promises made to its
// user.
type crashWorld struct {
	t   require.TestingT
	mem *vfs.Mem
	inj *vfs.Injector
	o   Options
	s   *Store

	mu      sync.Mutex
	promise *promise

	did Stats // counters of the stores that are closed
}

// promise is the set of rules that must hold after a crash at some moment. A promise is never
// changed: each change makes a new one.
type promise struct {
	pages   map[pagefile.Name]*promised
	damaged map[pagefile.Key]bool // pages whose files the workload has ever damaged
}

// promised is the knowledge of one page.
type promised struct {
	versions []*version // every page ever put under its name
	acked    int        // index of the last version for which Put returned nil; -1 for none
	durable  bool       // that version, a later one, or a tail that extends it is stored
	broken   []string   // the roots in which a damaged file may be in the page's place
}

// version is a page that was put.
type version struct {
	*pagefile.Page
	lossy func() []byte // its rows after it became lossy
}

// newVersion returns a page that a store with these settings may make lossy.
func newVersion(p *pagefile.Page, how ColdTypes) *version {
	return &version{p, sync.OnceValue(func() []byte { return lossyRows(crashT{}, p, how) })}
}

// rowsFor are the rows of the page of a ref.
func (v *version) rowsFor(ref Ref) []byte {
	if ref.Lossy {
		return v.lossy()
	}
	return v.Payload
}

func newCrashWorld(t require.TestingT, edit ...func(*Options)) *crashWorld {
	mem := vfs.NewMem(1 << 30)
	w := &crashWorld{t: t, mem: mem, inj: vfs.Inject(mem), promise: &promise{}}
	root := string(filepath.Separator)
	w.o = Options{
		FS:          w.inj,
		Fingerprint: testFingerprint(1), PageTokens: testTokens,
		Local:         TierConfig{Root: filepath.Join(root, "local"), BudgetBytes: 4 * tinyPage},
		Remote:        TierConfig{Root: filepath.Join(root, "remote"), BudgetBytes: 6 * tinyPage},
		RemoteTimeout: time.Minute, ReadTimeout: time.Minute,
	}
	for _, e := range edit {
		e(&w.o)
	}
	for _, dir := range []string{w.o.Local.Root, w.o.Remote.Root} {
		require.NoError(t, mem.Mkdir(dir))
	}
	require.NoError(t, mem.SyncDir(root))
	return w
}

// now returns the promise at this moment.
func (w *crashWorld) now() *promise {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.promise
}

// change replaces the promise by an edited copy.
func (w *crashWorld) change(edit func(p *promise)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changeLocked(edit)
}

func (w *crashWorld) changeLocked(edit func(p *promise)) {
	next := &promise{pages: make(map[pagefile.Name]*promised, len(w.promise.pages)), damaged: maps.Clone(w.promise.damaged)}
	if next.damaged == nil {
		next.damaged = make(map[pagefile.Key]bool)
	}
	for name, p := range w.promise.pages {
		clone := *p
		next.pages[name] = &clone
	}
	edit(next)
	w.promise = next
}

func (p *promise) page(name pagefile.Name) *promised {
	if p.pages[name] == nil {
		p.pages[name] = &promised{acked: -1}
	}
	return p.pages[name]
}

// supersede drops the tails that by, stored at name, extends.
func (p *promise) supersede(name pagefile.Name, by *pagefile.Page) {
	for other, known := range p.pages {
		if name.Class == pagefile.ClassTail && other.Class == pagefile.ClassTail && known.versions[0].Parent == by.Parent &&
			pagefile.CommonPrefix(known.versions[0].Tokens, nil, by.Tokens, nil) == len(known.versions[0].Tokens) {
			known.durable = false
		}
	}
}

func (w *crashWorld) open() {
	s, err := Open(ctx, w.o)
	require.NoError(w.t, err)
	w.s = s
	w.flush()
}

func (w *crashWorld) close() {
	require.NoError(w.t, w.s.Close())
	st := w.s.Stats()
	w.did.Puts += st.Puts
	w.did.Demoted += st.Demoted
	w.did.Promoted += st.Promoted
	w.did.Evicted += st.Evicted
	w.did.Damaged += st.Damaged
	w.did.LossyPages += st.LossyPages
}

func (w *crashWorld) flush() { require.NoError(w.t, w.s.Flush(ctx)) }

// tinyPages returns the pages of a prompt.
func tinyPages(t require.TestingT, o Options, sections []pagefile.Section, tokens []int32) []*pagefile.Page {
	var pages []*pagefile.Page
	parent := o.Fingerprint
	for at := 0; at < len(tokens); at += o.PageTokens {
		p := withSections(t, parent, at, tokens[at:min(at+o.PageTokens, len(tokens))], sections)
		pages, parent = append(pages, p), p.Key()
	}
	return pages
}

// placeOf returns the name under which a page is stored.
func placeOf(o Options, p *pagefile.Page) pagefile.Name {
	name := pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: p.Key()}
	if len(p.Tokens) < o.PageTokens {
		name.Class = pagefile.ClassTail
	}
	return name
}

// coldScale is the factor by which rows are longer that become lossy, so that a lossy page needs
// fewer blocks.
const coldScale = 64

// sectionsFor returns the sections of pages that a store with these options puts.
func sectionsFor(o Options, sections []pagefile.Section) []pagefile.Section {
	if !o.Cold.on() {
		return sections
	}
	long := slices.Clone(sections)
	for i := range long {
		long[i].RowBytes *= coldScale
	}
	return long
}

// pagesFor does as tinyPages; pages that become lossy have rows of numbers.
func pagesFor(t require.TestingT, o Options, sections []pagefile.Section, tokens []int32) []*pagefile.Page {
	pages := tinyPages(t, o, sectionsFor(o, sections), tokens)
	for _, p := range pages {
		if o.Cold.on() {
			coldFill(p.Layout, p.Key(), p.Payload)
		}
	}
	return pages
}

// put stores a prompt's pages.
func (w *crashWorld) put(sections []pagefile.Section, tokens []int32) {
	for _, p := range pagesFor(w.t, w.o, sections, tokens) {
		require.NoError(w.t, w.putPage(p))
	}
}

// putPage stores a page and records the promise.
func (w *crashWorld) putPage(p *pagefile.Page) error {
	name := placeOf(w.o, p)
	w.change(func(all *promise) {
		known := all.page(name)
		if n := len(known.versions); n == 0 || !known.versions[n-1].Layout.Equal(p.Layout) {
			known.versions = append(slices.Clone(known.versions), newVersion(p, w.o.Cold))
		}
	})
	broken := w.brokenAt(name)
	err := w.s.Put(ctx, p)
	if err == nil {
		w.change(func(all *promise) {
			all.supersede(name, p)
			// A page is stored already if its header says so: it is not known whether a
			// damaged file has been found and replaced.
			known := all.page(name)
			known.acked, known.durable, known.broken = len(known.versions)-1, len(broken) == 0, broken
		})
	}
	return err
}

// brokenAt returns where damaged files may still be in a page's place.
func (w *crashWorld) brokenAt(name pagefile.Name) (roots []string) {
	for _, root := range w.now().pages[name].broken {
		if _, err := w.mem.Lstat(filePath(root, name)); root == w.o.Local.Root && err != nil {
			continue // in quarantine, and a Put makes the move durable
		}
		roots = append(roots, root)
	}
	return roots
}

// read reads the pages found of a prompt, which promotes remote pages.
func (w *crashWorld) read(tokens []int32) int {
	refs := w.s.Find(ctx, Prompt{Tokens: tokens, Forms: AnyForm}).Mixed
	for _, ref := range refs {
		l, err := pagefile.NewLayout(sectionsFor(w.o, tinySections), ref.Stored)
		require.NoError(w.t, err)
		buf := make([]byte, l.Size())
		if err := w.s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf}); err != nil {
			require.True(w.t, errors.Is(err, pagefile.ErrDamaged) || errors.Is(err, pagefile.ErrMismatch) || errors.Is(err, tier.ErrNotFound), err)
		}
	}
	w.flush()
	return tokensIn(refs)
}

// damage flips a bit of a page's file, the local one if there are two.
func (w *crashWorld) damage(p *pagefile.Page, bit int) {
	name := placeOf(w.o, p)
	root, there := w.o.Local.Root, name
	if _, err := w.mem.Lstat(filePath(root, name)); err != nil {
		root = w.o.Remote.Root
		if _, err := w.mem.Lstat(filePath(root, name)); err != nil {
			there = pagefile.ColdName(name)
		}
	}
	w.change(func(all *promise) {
		all.damaged[name.Key] = true
		known := all.page(name)
		known.durable, known.broken = false, append(slices.Clone(known.broken), root)
	})
	err := w.mem.Edit(filePath(root, there), func(data []byte) []byte {
		data[bit/8%len(data)] ^= 1 << (bit % 8)
		return data
	})
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(w.t, err)
	}
}

// evictingLocked records that the store deletes a page from its last tier. w.mu is held.
func (w *crashWorld) evictingLocked(path string) {
	if !strings.HasPrefix(path, w.o.Remote.Root) {
		return
	}
	key, ok := storetest.PageKey(filepath.Base(path))
	if !ok {
		return
	}
	w.changeLocked(func(all *promise) {
		for name, p := range all.pages {
			if name.Key == key {
				p.durable = false
			}
		}
	})
}
