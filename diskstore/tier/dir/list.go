package dir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// entryKind is the kind of a file or directory that a walk found.
type entryKind uint8

const (
	entryOwn         entryKind = iota // a directory, a branch, or a file in which stores keep a lock, a count or a list
	EntryPage                         // a file in the place of a page or tail
	EntryManifest                     // a fingerprint's manifest.json
	EntryVectors                      // the vectors of a page or tail
	EntryTemp                         // a file in the temporary directory, or one that an NFS client removes when it is closed
	EntryQuarantined                  // a file in quarantine
	EntryLost                         // a page file in a directory that no look-up reads
	EntryNotRegular                   // a directory, link or FIFO in a page's place
	EntryForeign                      // a file or directory that no store made
	EntryUnlisted                     // a directory that cannot be listed, or a file that cannot be checked
)

// ownFiles are the names of the store's own files in <root>/v1.
var ownFiles = map[string]bool{collectLock: true, ledgerFile: true, ledgerLock: true, tombstonesFile: true}

// Entry is one file or directory below <root>/v1.
type Entry struct {
	Kind entryKind
	Path string
	Info fs.FileInfo   // nil when unlisted
	Name pagefile.Name // of a page, a tail or a manifest, or of an entry in the place of one
	Err  error         // the reason of EntryUnlisted
}

// Walk visits every entry below <root>/v1, each directory before its entries. Walk holds the names
// of one directory of each level at a time. Entries that are made or removed during the walk may
// or may not be visited. The walk ends when the tier does not answer.
func (r *root) Walk(ctx context.Context, visit func(Entry) error) error {
	if err := r.Ready(ctx); err != nil {
		return classify(err)
	}
	// Again, because a root that was removed during the walk looks like an empty one.
	if err := CheckRoot(r.FS, r.Root); err != nil {
		return r.missing(err)
	}
	return walker{r, ctx, visit}.dir(r.base, r.inBase)
}

// level tells what an entry of a directory is: it completes e, of which the path and the description are
// known. For a directory of the store it returns the level inside, for any other entry nil.
type level func(base string, e *Entry) level

type walker struct {
	*root
	ctx   context.Context
	visit func(Entry) error
}

// dir visits the entries of a directory, and those inside its directories.
func (w walker) dir(dir string, in level) error {
	entries, err := w.ReadDir(dir)
	if err != nil {
		return w.unlisted(dir, err)
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(filepath.Join(dir, e.Name()), in); err != nil {
			return err
		}
	}
	return nil
}

func (w walker) entry(path string, in level) error {
	e, base := Entry{Kind: EntryForeign, Path: path}, filepath.Base(path)
	err := w.again(func() (err error) {
		e.Info, err = w.FS.Lstat(path)
		return err
	})
	if errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	if err != nil {
		return w.unlisted(path, err)
	}
	if isSilly(base) && e.Info.Mode().IsRegular() {
		e.Kind = EntryTemp
	}
	inside := in(base, &e)
	if inside != nil {
		e.Kind = entryOwn
	}
	if err := w.visit(e); err != nil || inside == nil {
		return err
	}
	return w.dir(path, inside)
}

// unlisted visits an entry that cannot be looked at.
func (w walker) unlisted(path string, err error) error {
	if tier.NoAnswer(err) {
		return err
	}
	return w.visit(Entry{Kind: EntryUnlisted, Path: path, Err: err})
}

func (r *root) inBase(base string, e *Entry) level {
	fp, err := pagefile.ParseKey(base)
	switch {
	case !e.Info.IsDir():
		if ownFiles[base] && e.Info.Mode().IsRegular() {
			e.Kind = entryOwn
		}
	case err == nil:
		return r.inFingerprint(fp)
	case base == tmpDir:
		return inTemp
	case base == quarantineDir:
		return inQuarantine
	}
	return nil
}

func inTemp(base string, e *Entry) level {
	if _, _, ok := tempID(base); ok {
		e.Kind = EntryTemp
	}
	return nil
}

func inQuarantine(_ string, e *Entry) level {
	e.Kind = EntryQuarantined
	return nil
}

func (r *root) inFingerprint(fp pagefile.Key) level {
	return func(base string, e *Entry) level {
		switch {
		case base == ManifestFile:
			e.Kind, e.Name = EntryManifest, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassManifest}
			if !e.Info.Mode().IsRegular() {
				e.Kind = EntryNotRegular
			}
		case !e.Info.IsDir():
		case base == tailsDir:
			return inShards(r.inTails(fp))
		case base == prefixesDir:
			return inShards(r.inPrefixes(fp))
		case isShard(base):
			return r.inPages(pagefile.Name{Fingerprint: fp, Class: pagefile.ClassPage})
		}
		return nil
	}
}

// inShards is the level of a directory of shard directories.
func inShards(inside level) level {
	return func(base string, e *Entry) level {
		if isShard(base) && e.Info.IsDir() {
			return inside
		}
		return nil
	}
}

// inTails is the level of a shard of tails: a directory for all of them.
func (r *root) inTails(fp pagefile.Key) level {
	return func(base string, e *Entry) level {
		if _, err := pagefile.ParseKey(base); err == nil && e.Info.IsDir() {
			return r.inPages(pagefile.Name{Fingerprint: fp, Class: pagefile.ClassTail})
		}
		return nil
	}
}

// inPages is the level of page files; like has every field of their names except Key.
func (r *root) inPages(like pagefile.Name) level {
	return func(base string, e *Entry) level {
		e.Name = like
		if key, ok := parseFile(base, vectorsExt); ok {
			e.Name.Key = key
			if e.Info.Mode().IsRegular() && e.Path == filepath.Join(r.base, vectorsPath(e.Name)) {
				e.Kind = EntryVectors
			}
			return nil
		}
		key, ok := parseFile(base, PageExt)
		e.Name.Key = key
		switch {
		case !ok:
		case !e.Info.Mode().IsRegular():
			e.Kind = EntryNotRegular
		case e.Path != r.Path(e.Name):
			e.Kind = EntryLost
		default:
			e.Kind = EntryPage
		}
		return nil
	}
}

func (r *root) inPrefixes(fp pagefile.Key) level {
	return func(base string, e *Entry) level {
		prefix, err := pagefile.ParseKey(base)
		if err != nil || !e.Info.IsDir() {
			return nil
		}
		return func(base string, e *Entry) level {
			b, ok := parseBranch(fp, prefix, base)
			if ok && e.Info.Mode().IsRegular() && e.Info.Size() == 0 && e.Path == filepath.Join(r.base, branchPath(b)) {
				e.Kind = entryOwn
			}
			return nil
		}
	}
}

type listing struct {
	*root
	temp *tempDir
}

// Survey lists the directories of fingerprints and of their shards.
func (t *listing) Survey(ctx context.Context) (fingerprints []pagefile.Key, shards []tier.Shard, err error) {
	if err := t.Ready(ctx); err != nil {
		return nil, nil, classify(err)
	}
	entries, err := t.ReadDir(t.base)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		fp, perr := pagefile.ParseKey(e.Name())
		if perr != nil || !e.IsDir() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		fingerprints = append(fingerprints, fp)
		dir := filepath.Join(t.base, fp.String())
		if shards, err = t.appendShards(shards, dir, tier.Shard{Fingerprint: fp, Class: pagefile.ClassPage}); err != nil {
			return nil, nil, err
		}
		tails := filepath.Join(dir, tailsDir)
		if shards, err = t.appendShards(shards, tails, tier.Shard{Fingerprint: fp, Class: pagefile.ClassTail}); err != nil {
			return nil, nil, err
		}
	}
	return fingerprints, shards, nil
}

func (t *listing) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	in := t.inPages(pagefile.Name{Fingerprint: shard.Fingerprint, Class: pagefile.ClassPage})
	if shard.Class == pagefile.ClassTail {
		in = t.inTails(shard.Fingerprint)
	}
	return t.pagesIn(ctx, shardPath(shard), in)
}

// pagesIn lists the page files in a directory below <root>/v1. Misplaced files are left out: no
// look-up finds them.
func (t *listing) pagesIn(ctx context.Context, dir string, in level) (infos []tier.Info, err error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	vectors := besides{root: t.root}
	w := walker{t.root, ctx, func(e Entry) error {
		switch e.Kind {
		case EntryUnlisted:
			return e.Err
		case EntryPage:
			infos = append(infos, InfoOf(t.FS, e.Name, e.Info))
		case EntryVectors:
			vectors.add(e)
		case EntryTemp:
			t.temp.sweepSilly(e.Path)
		}
		return nil
	}}
	if err = w.dir(filepath.Join(t.base, dir), in); err == nil {
		vectors.join(infos)
	}
	return infos, err
}

func (t *listing) Aside(ctx context.Context) (tier.Aside, error) {
	if err := t.Ready(ctx); err != nil {
		return tier.Aside{}, classify(err)
	}
	aside := tier.Aside{Living: make(map[string]bool), Held: t.temp.sweep()}
	entries, err := t.ReadDir(t.temp.dir)
	if err != nil {
		return tier.Aside{}, err
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), LockExt); ok {
			aside.Living[id] = true
		}
	}
	for _, e := range entries {
		fi, err := t.FS.Lstat(filepath.Join(t.temp.dir, e.Name()))
		if err != nil || strings.HasSuffix(e.Name(), LockExt) {
			continue
		}
		aside.TempFiles++
		aside.TempBytes += t.FS.PhysicalBytes(fi)
		// No claim counts a page that is being removed, and its unlink may hang.
		if id, what, _ := strings.Cut(e.Name(), "-"); !aside.Living[id] || strings.HasPrefix(what, goneWord) {
			aside.OrphanBytes += t.FS.PhysicalBytes(fi)
		}
	}
	quarantine := filepath.Join(t.base, quarantineDir)
	if entries, err = t.ReadDir(quarantine); err != nil {
		return tier.Aside{}, err
	}
	for _, e := range entries {
		if fi, err := t.FS.Lstat(filepath.Join(quarantine, e.Name())); err == nil {
			aside.QuarantineFiles++
			aside.QuarantineBytes += t.FS.PhysicalBytes(fi)
		}
	}
	return aside, nil
}
