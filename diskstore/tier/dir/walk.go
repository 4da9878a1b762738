package dir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// entryKind is the kind of a file or directory that a walk found.
type entryKind uint8

const (
	entryDir         entryKind = iota // a directory of the store
	EntryPage                         // a file in the place of a page or tail
	EntryManifest                     // a fingerprint's manifest.json
	EntryBranch                       // an empty file that is a branch
	EntryTemp                         // a file in the temporary directory, or one that an NFS client removes when it is closed
	EntryQuarantined                  // a file in quarantine
	entryOwn                          // a file in which stores keep a lock, a count or a list
	EntryLost                         // a page file in a directory that no look-up reads
	EntryNotRegular                   // a directory, link or FIFO in a page's place
	EntryForeign                      // a file or directory that no store made
	EntryUnlisted                     // a directory that cannot be listed, or a file that cannot be checked
)

// ownFiles are the names of the store's own files in <root>/v1, and of one that earlier versions left.
var ownFiles = map[string]bool{collectLock: true, ledgerFile: true, ledgerLock: true, tombstonesFile: true, "trial.json": true}

// Entry is one file or directory below <root>/v1.
type Entry struct {
	Kind entryKind
	Path string
	Info fs.FileInfo   // nil when unlisted
	Name pagefile.Name // of a page, a tail or a manifest, or of an entry in the place of one
	Err  error         // the reason of EntryUnlisted
}

// Walker visits every entry below <root>/v1, each directory before its entries. A Walker holds
// the names of one directory at a time. Entries that are made or removed during the walk may
// or may not be visited. The walk ends when the tier does not answer.
type Walker struct {
	Ctx   context.Context
	T     *Tier
	Visit func(Entry) error

	// Leave is called after all entries of a fingerprint's directory; may be nil.
	Leave func(fingerprint pagefile.Key) error
}

func (w *Walker) Walk() error {
	if err := w.T.Ready(w.Ctx); err != nil {
		return classify(err)
	}
	// Again, because a root that was removed during the walk looks like an empty one.
	if err := CheckRoot(w.T.FS, w.T.Root); err != nil {
		return w.T.missing(err)
	}
	return w.each(w.T.base, func(base, path string, info fs.FileInfo) error {
		fp, err := pagefile.ParseKey(base)
		switch {
		case err == nil && info.IsDir():
			return w.fingerprint(fp, path, info)
		case base == tmpDir && info.IsDir():
			return w.flat(EntryTemp, path, info)
		case base == quarantineDir && info.IsDir():
			return w.flat(EntryQuarantined, path, info)
		case ownFiles[base] && info.Mode().IsRegular():
			return w.Visit(Entry{Kind: entryOwn, Path: path, Info: info})
		}
		return w.Visit(Entry{Kind: otherKind(base, info), Path: path, Info: info})
	})
}

// each calls fn for each entry of a directory.
func (w *Walker) each(dir string, fn func(base, path string, info fs.FileInfo) error) error {
	entries, err := w.T.ReadDir(dir)
	if tier.NoAnswer(err) {
		return err
	}
	if err != nil {
		return w.Visit(Entry{Kind: EntryUnlisted, Path: dir, Err: err})
	}
	for _, e := range entries {
		if err := w.Ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, e.Name())
		info, err := w.T.FS.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if tier.NoAnswer(err) {
			return err
		}
		if err != nil {
			err = w.Visit(Entry{Kind: EntryUnlisted, Path: path, Err: err})
		} else {
			err = fn(e.Name(), path, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// otherKind is the kind of an entry whose name stores do not give.
func otherKind(base string, info fs.FileInfo) entryKind {
	if isSilly(base) && info.Mode().IsRegular() {
		return EntryTemp
	}
	return EntryForeign
}

// flat visits a directory and its files, all of one kind.
func (w *Walker) flat(kind entryKind, dir string, info fs.FileInfo) error {
	if err := w.Visit(Entry{Kind: entryDir, Path: dir, Info: info}); err != nil {
		return err
	}
	return w.each(dir, func(_, path string, info fs.FileInfo) error {
		return w.Visit(Entry{Kind: kind, Path: path, Info: info})
	})
}

func (w *Walker) fingerprint(fp pagefile.Key, dir string, info fs.FileInfo) error {
	if err := w.Visit(Entry{Kind: entryDir, Path: dir, Info: info}); err != nil {
		return err
	}
	err := w.each(dir, func(base, path string, info fs.FileInfo) error {
		switch {
		case base == ManifestFile:
			kind := EntryManifest
			if !info.Mode().IsRegular() {
				kind = EntryNotRegular
			}
			return w.Visit(Entry{Kind: kind, Path: path, Info: info, Name: pagefile.Name{Fingerprint: fp, Class: pagefile.ClassManifest}})
		case base == tailsDir && info.IsDir():
			return w.tails(fp, path, info)
		case base == prefixesDir && info.IsDir():
			return w.branches(fp, path, info)
		case base == oldBranches && info.IsDir():
			return w.oldBranches(fp, path, info)
		case isShard(base) && info.IsDir():
			return w.pages(path, info, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassPage})
		}
		return w.Visit(Entry{Kind: otherKind(base, info), Path: path, Info: info})
	})
	if err != nil || w.Leave == nil {
		return err
	}
	return w.Leave(fp)
}

// tails visits the two levels of directories that hold a fingerprint's tails.
func (w *Walker) tails(fp pagefile.Key, dir string, info fs.FileInfo) error {
	return w.shards(dir, info, func(base, path string, info fs.FileInfo) error {
		parent, ok := parseTailFolder(base)
		if !ok || !info.IsDir() {
			return w.Visit(Entry{Kind: otherKind(base, info), Path: path, Info: info})
		}
		return w.pages(path, info, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassTail, Parent: parent})
	})
}

// branches visits the two levels of directories that hold a fingerprint's branches.
func (w *Walker) branches(fp pagefile.Key, dir string, info fs.FileInfo) error {
	return w.shards(dir, info, func(base, path string, info fs.FileInfo) error {
		prefix, err := pagefile.ParseKey(base)
		if err != nil || !info.IsDir() {
			return w.Visit(Entry{Kind: otherKind(base, info), Path: path, Info: info})
		}
		if err := w.Visit(Entry{Kind: entryDir, Path: path, Info: info}); err != nil {
			return err
		}
		return w.each(path, func(base, path string, info fs.FileInfo) error {
			b, ok := parseBranch(fp, prefix, base)
			return w.branch(ok, branchPath(b), path, info)
		})
	})
}

// oldBranches visits the directories that hold branches of earlier versions.
func (w *Walker) oldBranches(fp pagefile.Key, dir string, info fs.FileInfo) error {
	return w.shards(dir, info, func(base, path string, info fs.FileInfo) error {
		b, ok := parseOldBranch(fp, base)
		return w.branch(ok, oldBranchPath(b), path, info)
	})
}

// branch visits a file among branches; ok reports that its name is that of the branch at place.
func (w *Walker) branch(ok bool, place, path string, info fs.FileInfo) error {
	kind := otherKind(filepath.Base(path), info)
	if ok && info.Mode().IsRegular() && info.Size() == 0 && path == filepath.Join(w.T.base, place) {
		kind = EntryBranch
	}
	return w.Visit(Entry{Kind: kind, Path: path, Info: info})
}

// shards visits dir and its shard directories, and calls fn for each of their entries.
func (w *Walker) shards(dir string, info fs.FileInfo, fn func(base, path string, info fs.FileInfo) error) error {
	if err := w.Visit(Entry{Kind: entryDir, Path: dir, Info: info}); err != nil {
		return err
	}
	return w.each(dir, func(base, path string, info fs.FileInfo) error {
		if !isShard(base) || !info.IsDir() {
			return w.Visit(Entry{Kind: otherKind(base, info), Path: path, Info: info})
		}
		if err := w.Visit(Entry{Kind: entryDir, Path: path, Info: info}); err != nil {
			return err
		}
		return w.each(path, fn)
	})
}

// pages visits the page files in dir; like has every field of their names except Key.
func (w *Walker) pages(dir string, info fs.FileInfo, like pagefile.Name) error {
	if err := w.Visit(Entry{Kind: entryDir, Path: dir, Info: info}); err != nil {
		return err
	}
	return w.each(dir, func(base, path string, info fs.FileInfo) error {
		e := Entry{Kind: otherKind(base, info), Path: path, Info: info, Name: like}
		key, ok := parsePageFile(base)
		e.Name.Key = key
		switch {
		case !ok:
		case !info.Mode().IsRegular():
			e.Kind = EntryNotRegular
		case path != w.T.Path(e.Name):
			e.Kind = EntryLost
		default:
			e.Kind = EntryPage
		}
		return w.Visit(e)
	})
}
