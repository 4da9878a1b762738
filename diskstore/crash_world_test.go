package diskstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/vfs"
)

// tinySections make pages of four blocks, so that a file can be torn inside.
var tinySections = []Section{{Kind: KindK, RowBytes: 16}, {Kind: KindV, RowBytes: 8}}

// otherSections are those of the same page as another engine would lay it out.
var otherSections = []Section{{Kind: KindK, RowBytes: 16}, {Kind: KindV, RowBytes: 8}, {Layer: 1, Kind: KindK, RowBytes: 1}}

// tinyPage is the disk space of a page of tinySections, in bytes.
const tinyPage = 4 * 4096

// A crashWorld is a store with two tiers on a filesystem in memory, and what its
// user has been promised.
type crashWorld struct {
	t   require.TestingT
	mem *vfs.Mem
	inj *vfs.Injector
	o   Options
	s   *Store

	mu      sync.Mutex
	promise *promise

	did Stats // what stores that are closed have counted
}

// promise is what must hold after a crash at some moment. It is never changed:
// there is a new one for each moment at which something changes.
type promise struct {
	pages   map[Name]*promised
	damaged map[Key]bool // pages whose files the workload has ever damaged
}

// promised is what is known of one page.
type promised struct {
	versions []*Page // all that was ever put under its name
	acked    int     // the last of them that Put returned nil for; -1 for none
	durable  bool    // that one or a later one, or a tail that extends it, is there
	broken   string  // the root where a damaged file may be in its place; or ""
}

func newCrashWorld(t require.TestingT, edit ...func(*Options)) *crashWorld {
	mem := vfs.NewMem(1 << 30)
	w := &crashWorld{t: t, mem: mem, inj: vfs.Inject(mem), promise: &promise{}}
	root := string(filepath.Separator)
	w.o = Options{
		FS:          w.inj,
		Fingerprint: testFingerprint(1), PageTokens: testTokens,
		Local:         TierConfig{Root: filepath.Join(root, "local"), BudgetBytes: 4 * tinyPage},
		Remote:        TierConfig{Root: filepath.Join(root, "remote"), BudgetBytes: 8 * tinyPage},
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

// now returns what is promised at this moment.
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
	next := &promise{pages: make(map[Name]*promised, len(w.promise.pages)), damaged: maps.Clone(w.promise.damaged)}
	if next.damaged == nil {
		next.damaged = make(map[Key]bool)
	}
	for name, p := range w.promise.pages {
		clone := *p
		next.pages[name] = &clone
	}
	edit(next)
	w.promise = next
}

func (p *promise) page(name Name) *promised {
	if p.pages[name] == nil {
		p.pages[name] = &promised{acked: -1}
	}
	return p.pages[name]
}

// supersede drops the tails that p, at name, extends.
func (p *promise) supersede(name Name, by *Page) {
	for other, known := range p.pages {
		if name.Class == ClassTail && other.Class == ClassTail && other.Parent == name.Parent &&
			commonPrefix(known.versions[0].Tokens, nil, by.Tokens, nil) == len(known.versions[0].Tokens) {
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
}

func (w *crashWorld) flush() { require.NoError(w.t, w.s.Flush(ctx)) }

// tinyPages returns the pages of a prompt.
func tinyPages(t require.TestingT, o Options, sections []Section, tokens []int32) []*Page {
	var pages []*Page
	parent := o.Fingerprint
	for at := 0; at < len(tokens); at += o.PageTokens {
		part := tokens[at:min(at+o.PageTokens, len(tokens))]
		l, err := NewLayout(sections, len(part))
		require.NoError(t, err)
		p := &Page{Parent: parent, Start: uint32(at), Tokens: part, Layout: l, Payload: make([]byte, l.Size())}
		parent = p.Key()
		fillRows(l, parent, p.Payload)
		pages = append(pages, p)
	}
	return pages
}

// nameOf returns where a page is kept.
func nameOf(o Options, p *Page) Name {
	name := Name{Fingerprint: o.Fingerprint, Class: ClassPage, Key: p.Key()}
	if len(p.Tokens) < o.PageTokens {
		name.Class, name.Parent = ClassTail, p.Parent
	}
	return name
}

// put stores a prompt's pages.
func (w *crashWorld) put(sections []Section, tokens []int32) {
	for _, p := range tinyPages(w.t, w.o, sections, tokens) {
		require.NoError(w.t, w.putPage(p))
	}
}

// putPage stores a page, and keeps account of what that promises.
func (w *crashWorld) putPage(p *Page) error {
	name := nameOf(w.o, p)
	w.change(func(all *promise) {
		known := all.page(name)
		if n := len(known.versions); n == 0 || !known.versions[n-1].Layout.Equal(p.Layout) {
			known.versions = append(slices.Clone(known.versions), p)
		}
	})
	broken := w.brokenAt(name)
	err := w.s.Put(ctx, p)
	if err == nil {
		w.change(func(all *promise) {
			all.supersede(name, p)
			// A page is stored already when its header says so: whether the file
			// that was damaged has been found out and replaced is not known.
			known := all.page(name)
			known.acked, known.durable, known.broken = len(known.versions)-1, broken == "", broken
		})
	}
	return err
}

// brokenAt returns where a damaged file may still be in a page's place.
func (w *crashWorld) brokenAt(name Name) string {
	root := w.now().pages[name].broken
	if _, err := w.mem.Lstat(filePath(root, name)); root == w.o.Local.Root && err != nil {
		return "" // in quarantine, and a Put makes that durable
	}
	return root
}

// read reads as much of a prompt as is found, which promotes what is remote.
func (w *crashWorld) read(tokens []int32) int {
	refs := w.s.Chain(ctx, tokens, nil)
	for _, ref := range refs {
		l, err := NewLayout(tinySections, ref.Stored)
		require.NoError(w.t, err)
		buf := make([]byte, l.Size())
		if err := w.s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, buf); err != nil {
			require.True(w.t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrMismatch) || errors.Is(err, ErrNotFound), err)
		}
	}
	w.flush()
	return tokensIn(refs)
}

// damage flips a bit of a page's file, the local one if there are two.
func (w *crashWorld) damage(p *Page, bit int) {
	name := nameOf(w.o, p)
	root := w.o.Local.Root
	if _, err := w.mem.Lstat(filePath(root, name)); err != nil {
		root = w.o.Remote.Root
	}
	w.change(func(all *promise) {
		all.damaged[name.Key] = true
		known := all.page(name)
		known.durable, known.broken = false, root
	})
	err := w.mem.Edit(filePath(root, name), func(data []byte) []byte {
		data[bit/8%len(data)] ^= 1 << (bit % 8)
		return data
	})
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(w.t, err)
	}
}

// evicting takes note of a page that the store deletes from its last tier.
func (w *crashWorld) evictingLocked(path string) {
	if !strings.HasPrefix(path, w.o.Remote.Root) {
		return
	}
	key, ok := parsePageFile(filepath.Base(path))
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

// tree is what a tier's directory holds.
type tree struct {
	pages, tails int
	bytes        int64 // physical, of pages and tails
	temps, locks []string
	quarantined  []Key
	placed       map[string]Key // path → key of pages and tails
}

// walk looks at everything below a root, past the store.
func walk(fsys vfs.FS, root string) (tree, error) {
	found := tree{placed: make(map[string]Key)}
	var in func(dir string) error
	in = func(dir string) error {
		entries, err := fsys.ReadDir(dir)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() {
				if err := in(path); err != nil {
					return err
				}
				continue
			}
			info, err := fsys.Lstat(path)
			if err != nil {
				return err
			}
			switch filepath.Ext(path) {
			case tmpExt:
				found.temps = append(found.temps, path)
			case lockExt:
				found.locks = append(found.locks, path)
			case pageExt:
				found.add(path, fsys.PhysicalBytes(info))
			}
		}
		return err
	}
	return found, in(root)
}

func (f *tree) add(path string, physical int64) {
	if filepath.Base(filepath.Dir(path)) == quarantineDir {
		hex, _, _ := strings.Cut(filepath.Base(path), ".")
		key, _ := ParseKey(hex)
		f.quarantined = append(f.quarantined, key)
		return
	}
	key, ok := parsePageFile(filepath.Base(path))
	if !ok {
		return
	}
	f.placed[path] = key
	f.bytes += physical
	if strings.Contains(path, string(filepath.Separator)+tailsDir+string(filepath.Separator)) {
		f.tails++
	} else {
		f.pages++
	}
}

// reopening says how a store is opened after a crash.
type reopening struct {
	demote bool // with the budget it had
	again  bool // for the second time: it was opened and written to since
}

// check opens a store on what a crash has left, and returns what is not as it
// was promised.
func (p *promise) check(mem *vfs.Mem, o Options, how reopening) (err error) {
	o.FS = mem
	// What the crash brought back may be more than both budgets; what is looked
	// for must not be deleted meanwhile. Where it may still move down, every page
	// that is read comes up and sends another one down.
	o.Remote.BudgetBytes = 0
	if !how.demote {
		o.Local.BudgetBytes = 0
	}
	s, err := Open(ctx, o)
	if err != nil {
		return fmt.Errorf("open after the crash: %w", err)
	}
	defer func() {
		if cerr := s.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("close: %w", cerr)
		}
		if err == nil {
			err = checkTemps(mem, o.Remote.Root)
		}
	}()
	if err := s.Flush(ctx); err != nil {
		return err
	}
	if err := checkTemps(mem, o.Local.Root); err != nil {
		return err
	}
	for name, page := range p.pages {
		if err := page.check(s, name); err != nil {
			return fmt.Errorf("page %v: %w", name, err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	for _, id := range []tierID{tierLocal, tierRemote} {
		found, err := walk(mem, s.config(id).Root)
		if err != nil {
			return err
		}
		if err := p.checkFiles(mem, found); err != nil {
			return fmt.Errorf("in the %v tier: %w", id, err)
		}
		if id == tierLocal {
			if err := checkAccounts(s, found); err != nil {
				return err
			}
		}
	}
	return checkWritable(s, how.again)
}

// checkFiles wants every page that can be seen to be whole, and nothing in
// quarantine that was good.
func (p *promise) checkFiles(mem *vfs.Mem, found tree) error {
	for path, key := range found.placed {
		if _, err := VerifyFile(ctx, mem, path); err != nil && !p.broken(key) {
			return fmt.Errorf("a page is neither whole nor absent: %w", err)
		}
	}
	for _, key := range found.quarantined {
		if !p.damaged[key] {
			return fmt.Errorf("page %v is in quarantine and was never damaged", key)
		}
	}
	return nil
}

// broken reports whether a damaged file may be where the page belongs.
func (p *promise) broken(key Key) bool {
	for name, page := range p.pages {
		if name.Key == key && page.broken != "" {
			return true
		}
	}
	return false
}

// check looks for the page as a caller would that knows what it should be.
func (p *promised) check(s *Store, name Name) error {
	last := p.versions[len(p.versions)-1]
	refs := s.ChainFrom(ctx, last.Parent, int(last.Start), last.Tokens, nil)
	if tokensIn(refs) < len(last.Tokens) {
		if p.durable {
			return fmt.Errorf("published and gone: %d of %d tokens found", tokensIn(refs), len(last.Tokens))
		}
		return nil
	}
	if refs[0].Key != name.Key {
		return nil // a longer tail, which is checked as itself
	}
	return p.read(s, refs[0])
}

// read wants the page found at ref to be one of those that may be there.
func (p *promised) read(s *Store, ref Ref) error {
	for i, version := range slices.Backward(p.versions) {
		buf := make([]byte, version.Layout.Size())
		err := s.Read(ctx, ref, version.Tokens[:ref.Tokens], version.Layout, buf)
		switch {
		case err == nil && !bytes.Equal(buf, version.Payload):
			return errors.New("read without an error, and wrong")
		case err == nil && p.durable && i < p.acked:
			return errors.New("found as it was before it was put again")
		case err == nil:
			return nil
		case p.broken != "" && errors.Is(err, ErrDamaged):
			return nil
		case !p.durable && errors.Is(err, ErrNotFound):
			return nil
		case !errors.Is(err, ErrMismatch):
			return fmt.Errorf("found and not readable: %w", err)
		}
	}
	return errors.New("found with sections that nobody has put")
}

// checkTemps wants no temporary file left once a process has begun to write to a
// root.
func checkTemps(mem *vfs.Mem, root string) error {
	tier := newDirTier(mem, root, false)
	if _, err := tier.temp.claim(); err != nil {
		return fmt.Errorf("begin to write in %s: %w", root, err)
	}
	found, err := walk(mem, root)
	if err != nil {
		return err
	}
	if len(found.temps) > 0 {
		return fmt.Errorf("temporary files of the dead are left: %v, with locks %v", found.temps, found.locks)
	}
	return tier.Close()
}

// checkAccounts wants the store to know exactly what the local tier holds.
func checkAccounts(s *Store, found tree) error {
	before := s.Stats().Local
	if _, err := s.Scan(ctx); err != nil {
		return err
	}
	after := s.Stats().Local
	if want := (TierStats{Pages: found.pages, Tails: found.tails, Bytes: found.bytes}); after != want || before != after {
		return fmt.Errorf("accounts are %+v before and %+v after counting, want %+v", before, after, want)
	}
	return nil
}

// checkWritable puts pages the workload has not put and reads them back. When
// they were put before, they must be there.
func checkWritable(s *Store, again bool) error {
	for _, p := range freshPages(s.opt) {
		if found := s.ChainFrom(ctx, p.Parent, int(p.Start), p.Tokens, nil); again != (tokensIn(found) > 0) {
			return fmt.Errorf("put after the crash: page %v is there %v, want %v", p.Key(), !again, again)
		}
		if err := s.Put(ctx, p); err != nil {
			return fmt.Errorf("put after the crash: %w", err)
		}
		refs := s.ChainFrom(ctx, p.Parent, int(p.Start), p.Tokens, nil)
		if len(refs) != 1 {
			return fmt.Errorf("put after the crash and not found: %v", refs)
		}
		buf := make([]byte, p.Layout.Size())
		if err := s.Read(ctx, refs[0], p.Tokens, p.Layout, buf); err != nil || !bytes.Equal(buf, p.Payload) {
			return fmt.Errorf("put after the crash and not read: %w", err)
		}
	}
	return s.Flush(context.Background())
}

var freshPagesOnce = struct {
	sync.Mutex
	pages []*Page
}{}

// freshPages makes a page and a tail that no workload uses.
func freshPages(o Options) []*Page {
	freshPagesOnce.Lock()
	defer freshPagesOnce.Unlock()
	if freshPagesOnce.pages == nil {
		freshPagesOnce.pages = tinyPages(crashT{}, o, tinySections, prompt(1_999, testTokens+3))
	}
	var pages []*Page
	for _, p := range freshPagesOnce.pages {
		clone := *p
		clone.Payload = bytes.Clone(p.Payload) // a Put clears the gaps of its page
		pages = append(pages, &clone)
	}
	return pages
}
