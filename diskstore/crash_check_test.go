package diskstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// tree is the content of a tier's directory.
type tree struct {
	pages, tails int
	bytes        int64 // physical, of pages and tails
	all          int64 // physical, with quarantine, each file once
	held         int64 // physical, that count against a budget: all, and temporary files but those of the ledger
	temps, locks []string
	quarantined  []pagefile.Key
	placed       map[string]pagefile.Key // path → key of pages and tails
}

// walk reads everything below a root, without the store.
func walk(fsys vfs.FS, root string) (tree, error) {
	found, seen := tree{placed: make(map[string]pagefile.Key)}, make(map[any]bool)
	var in func(dir string) error
	in = func(folder string) error {
		entries, err := fsys.ReadDir(folder)
		for _, e := range entries {
			path := filepath.Join(folder, e.Name())
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
			ext, page := filepath.Ext(path), filepath.Ext(path) == dir.PageExt
			if counts := page || ext == dir.TmpExt && !strings.Contains(path, "-usage"); counts && !seen[info.Sys()] {
				seen[info.Sys()] = true
				found.held += fsys.PhysicalBytes(info)
				if page {
					found.all += fsys.PhysicalBytes(info)
				}
			}
			switch ext {
			case dir.TmpExt:
				found.temps = append(found.temps, path)
			case dir.LockExt:
				found.locks = append(found.locks, path)
			case dir.PageExt:
				found.add(path, fsys.PhysicalBytes(info))
			}
		}
		return err
	}
	return found, in(root)
}

func (f *tree) add(path string, physical int64) {
	if filepath.Base(filepath.Dir(path)) == storetest.QuarantineDir {
		hex, _, _ := strings.Cut(filepath.Base(path), ".")
		key, _ := pagefile.ParseKey(hex)
		f.quarantined = append(f.quarantined, key)
		return
	}
	key, ok := storetest.PageKey(filepath.Base(path))
	if !ok {
		return
	}
	f.placed[path] = key
	f.bytes += physical
	if strings.Contains(path, string(filepath.Separator)+storetest.TailsDir+string(filepath.Separator)) {
		f.tails++
	} else {
		f.pages++
	}
}

// reopening is the way in which a store is opened after a crash.
type reopening struct {
	demote bool // with its previous budget
	again  bool // for the second time: the store was opened and written to since
}

// check opens a store on the state after a crash, and returns the broken promises.
func (p *promise) check(mem *vfs.Mem, o Options, how reopening) (err error) {
	o.FS = mem
	tiers := []TierConfig{o.Local, o.Remote}
	if how.again {
		tiers = tiers[:1]
	}
	if err := checkBudgets(mem, tiers); err != nil {
		return err
	}
	// The files that the crash brought back may exceed both budgets, and no file may be
	// deleted before its check. While pages may move down, every page that is read moves up
	// and sends another one down.
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
	for _, lv := range s.tiers {
		found, err := walk(mem, lv.config.Root)
		if err != nil {
			return err
		}
		if err := p.checkFiles(mem, found); err != nil {
			return fmt.Errorf("in the %s tier: %w", lv.name, err)
		}
		if lv == s.local {
			if err := checkAccounts(s, found); err != nil {
				return err
			}
		}
	}
	return checkWritable(s, how.again)
}

// checkBudgets requires the tiers to be within their budgets after the crash, except temporary
// files, which are removed before the next write: a temporary file may be all that is left of
// a page whose other name is gone.
func checkBudgets(mem *vfs.Mem, tiers []TierConfig) error {
	for _, tier := range tiers {
		found, err := walk(mem, tier.Root)
		if err != nil {
			return err
		}
		if tier.BudgetBytes > 0 && found.all > tier.BudgetBytes {
			return fmt.Errorf("%d bytes are in %s, its budget is %d", found.all, tier.Root, tier.BudgetBytes)
		}
	}
	return nil
}

// checkFiles requires every visible page to be whole, and quarantine to hold no good page.
func (p *promise) checkFiles(mem *vfs.Mem, found tree) error {
	for path, key := range found.placed {
		if _, err := verifyFile(ctx, mem, path); err != nil && !p.broken(key) {
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

// broken reports whether a damaged file may be in the page's place.
func (p *promise) broken(key pagefile.Key) bool {
	for name, page := range p.pages {
		if name.Key == key && len(page.broken) > 0 {
			return true
		}
	}
	return false
}

// check looks for the page as a caller that knows its rows. A page may move down and become lossy
// between its look-up and its Read, so that the name that was found is gone: it is looked up again
// when the moves that Open began have ended.
func (p *promised) check(s *Store, name pagefile.Name) error {
	err := p.checkNow(s, name)
	if errors.Is(err, tier.ErrNotFound) {
		if err := s.Flush(ctx); err != nil {
			return fmt.Errorf("waiting for moves: %w", err)
		}
		return p.checkNow(s, name)
	}
	return err
}

func (p *promised) checkNow(s *Store, name pagefile.Name) error {
	last := p.versions[len(p.versions)-1]
	refs := s.Find(ctx, Prompt{Parent: last.Parent, Start: int(last.Start), Tokens: last.Tokens, Forms: AnyForm}).Mixed
	if tokensIn(refs) < len(last.Tokens) {
		if p.durable {
			return fmt.Errorf("published and gone: %d of %d tokens found", tokensIn(refs), len(last.Tokens))
		}
		return nil
	}
	if refs[0].Key != name.Key {
		return nil // a longer tail, with a check of its own
	}
	return p.read(s, refs[0])
}

// read requires the page found at ref to be one of the allowed versions.
func (p *promised) read(s *Store, ref Ref) error {
	for i, version := range slices.Backward(p.versions) {
		buf := make([]byte, version.Layout.Size())
		err := s.Read(ctx, ref, version.Tokens[:ref.Tokens], version.Layout, Into{Rows: buf})
		switch {
		case err == nil && !bytes.Equal(buf, version.rowsFor(ref)):
			return errors.New("read without an error, and wrong")
		case err == nil && p.durable && i < p.acked:
			return errors.New("found as it was before it was put again")
		case err == nil:
			return nil
		case len(p.broken) > 0 && errors.Is(err, pagefile.ErrDamaged):
			return nil
		case !p.durable && errors.Is(err, tier.ErrNotFound):
			return nil
		case !errors.Is(err, pagefile.ErrMismatch):
			return fmt.Errorf("found and not readable: %w", err)
		}
	}
	return errors.New("found with sections that were never put")
}

// checkTemps requires that no temporary file is left once a process has begun to write to a
// root.
func checkTemps(mem *vfs.Mem, root string) error {
	tier := dir.New(mem, root, dir.Options{})
	if err := tier.Claim(ctx); err != nil {
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

// checkAccounts requires the store to know the exact content of the local tier.
func checkAccounts(s *Store, found tree) error {
	before := s.Stats().Local
	if _, err := recount(ctx, s); err != nil {
		return err
	}
	after := s.Stats().Local
	if want := (TierStats{Pages: found.pages, Tails: found.tails, Bytes: found.bytes}); after != want || before != after {
		return fmt.Errorf("accounts are %+v before and %+v after counting, want %+v", before, after, want)
	}
	return nil
}

// checkWritable puts pages that the workload has not put, and reads them back. Pages put
// before must exist.
func checkWritable(s *Store, again bool) error {
	for _, p := range freshPages(s.opt) {
		if found := s.Find(ctx, Prompt{Parent: p.Parent, Start: int(p.Start), Tokens: p.Tokens}).Exact; again != (tokensIn(found) > 0) {
			return fmt.Errorf("put after the crash: page %v is there %v, want %v", p.Key(), !again, again)
		}
		began := time.Now()
		err := s.Put(ctx, p)
		if errors.Is(err, tier.ErrNoSpace) && time.Since(began) >= room.Wait {
			// A busy machine may not have run the collection in the time for which Put waits.
			err = errors.Join(s.Flush(ctx), s.Put(ctx, p))
		}
		if err != nil {
			return fmt.Errorf("put after the crash: %w", err)
		}
		refs := s.Find(ctx, Prompt{Parent: p.Parent, Start: int(p.Start), Tokens: p.Tokens}).Exact
		if len(refs) != 1 {
			return fmt.Errorf("put after the crash and not found: %v", refs)
		}
		buf := make([]byte, p.Layout.Size())
		if err := s.Read(ctx, refs[0], p.Tokens, p.Layout, Into{Rows: buf}); err != nil || !bytes.Equal(buf, p.Payload) {
			return fmt.Errorf("put after the crash and not read: %w", err)
		}
	}
	return s.Flush(context.Background())
}

var freshPagesOnce = struct {
	sync.Mutex
	pages []*pagefile.Page
}{}

// freshPages makes a page and a tail that no workload uses.
func freshPages(o Options) []*pagefile.Page {
	freshPagesOnce.Lock()
	defer freshPagesOnce.Unlock()
	if freshPagesOnce.pages == nil {
		freshPagesOnce.pages = tinyPages(crashT{}, o, tinySections, prompt(1_999, testTokens+3))
	}
	var pages []*pagefile.Page
	for _, p := range freshPagesOnce.pages {
		clone := *p
		clone.Payload = bytes.Clone(p.Payload) // a Put clears the gaps of its page
		pages = append(pages, &clone)
	}
	return pages
}

// TestCrashLeavesNoLedgerTooLow cuts the power at every operation of a workload and compares
// the bytes of the remaining files with the ledger's figure.
func TestCrashLeavesNoLedgerTooLow(t *testing.T) {
	statesOneByOne(t)
	for _, mode := range crashModes {
		t.Run(mode.name, func(t *testing.T) { crashLeavesNoLedgerTooLow(t, recordCrashes(t, 101, mode.set)) })
	}
}

func crashLeavesNoLedgerTooLow(t *testing.T, r *crashRecord) {
	states := 0
	for i := range r.points {
		at := &r.points[i]
		for _, c := range r.cases(i) {
			if c.spare != "" {
				continue
			}
			states++
			mem := at.mem.Crash(c.keep, uint64(at.nth)<<8|c.seed)
			for _, root := range []string{r.o.Local.Root, r.o.Remote.Root} {
				require.NoError(t, checkLedger(mem, root), "operation %d (%s), %v kept, seed %d", at.nth, at.what, c.keep, c.seed)
			}
		}
	}
	require.Greater(t, states, 1500)
}

// checkLedger compares a ledger with the bytes of pages, tails and quarantined files.
// Temporary files are removed before the next write.
func checkLedger(mem *vfs.Mem, root string) error {
	content, err := dir.New(mem, root, dir.Options{}).Account(ctx, nil)
	l := ledger.Read(content)
	if err != nil || l.Counts == 0 {
		return err // no write happens before a count
	}
	found, err := walk(mem, root)
	if err != nil {
		return err
	}
	occupied := found.bytes
	quarantine := filepath.Join(root, storetest.VersionDir, storetest.QuarantineDir)
	entries, err := mem.ReadDir(quarantine)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	damaged := make(map[pagefile.Key]bool) // in its place, and perhaps in quarantine as well
	for path, key := range found.placed {
		_, err := verifyFile(ctx, mem, path)
		damaged[key] = err != nil
	}
	for _, e := range entries {
		hex, _, _ := strings.Cut(e.Name(), ".")
		if key, err := pagefile.ParseKey(hex); err == nil && damaged[key] {
			continue // one file of which both names have survived
		}
		info, err := mem.Lstat(filepath.Join(quarantine, e.Name()))
		if err != nil {
			return err
		}
		occupied += mem.PhysicalBytes(info)
	}
	if occupied > l.Figure() {
		return fmt.Errorf("files in %s occupy %d bytes, the ledger says at most %d", root, occupied, l.Figure())
	}
	return nil
}
