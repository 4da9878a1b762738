package diskstore

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
)

// entryKind says what a walk has found.
type entryKind uint8

const (
	entryDir         entryKind = iota // a directory of the store's
	entryPage                         // a file where a page or tail belongs
	entryManifest                     // a fingerprint's manifest.json
	entryTemp                         // a file in the temporary directory
	entryQuarantined                  // a file in quarantine
	entryOwn                          // a file in which stores keep a lock or a count
	entryLost                         // a page file in a directory where nothing looks for it
	entryNotRegular                   // a page's place taken by something that is no file
	entryForeign                      // none of the store's
	entryUnlisted                     // a directory that cannot be listed, or a file that cannot be looked at
)

// ownFiles are the names of those below <root>/v1.
var ownFiles = map[string]bool{collectLock: true, ledgerFile: true, ledgerLock: true}

// entry is one file or directory below <root>/v1.
type entry struct {
	kind entryKind
	path string
	info fs.FileInfo // nil when unlisted
	name Name        // of a page, a tail, a manifest or what has its place
	err  error       // why unlisted
}

// walker visits everything below <root>/v1, each directory before what is in
// it. It holds one directory's names at a time. What comes or goes meanwhile
// may or may not be visited. It ends when the tier does not answer.
type walker struct {
	ctx   context.Context
	t     *dirTier
	visit func(entry) error

	// leave is called after everything in a fingerprint's directory; nil calls
	// nobody.
	leave func(fingerprint Key) error
}

func (w *walker) walk() error {
	if err := w.t.ready(w.ctx); err != nil {
		return classify(err)
	}
	// Again, because a root that went later reads as one that is empty.
	if err := CheckRoot(w.t.fs, w.t.root); err != nil {
		return w.t.missing(err)
	}
	return w.each(w.t.base, func(base, path string, info fs.FileInfo) error {
		fp, err := ParseKey(base)
		switch {
		case err == nil && info.IsDir():
			return w.fingerprint(fp, path, info)
		case base == tmpDir && info.IsDir():
			return w.flat(entryTemp, path, info)
		case base == quarantineDir && info.IsDir():
			return w.flat(entryQuarantined, path, info)
		case ownFiles[base] && info.Mode().IsRegular():
			return w.visit(entry{kind: entryOwn, path: path, info: info})
		}
		return w.visit(entry{kind: entryForeign, path: path, info: info})
	})
}

// each calls fn for everything in a directory.
func (w *walker) each(dir string, fn func(base, path string, info fs.FileInfo) error) error {
	entries, err := w.t.readDir(dir)
	if NoAnswer(err) {
		return err
	}
	if err != nil {
		return w.visit(entry{kind: entryUnlisted, path: dir, err: err})
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, e.Name())
		info, err := w.t.fs.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if NoAnswer(err) {
			return err
		}
		if err != nil {
			err = w.visit(entry{kind: entryUnlisted, path: path, err: err})
		} else {
			err = fn(e.Name(), path, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flat visits a directory and the files in it, all of one kind.
func (w *walker) flat(kind entryKind, dir string, info fs.FileInfo) error {
	if err := w.visit(entry{kind: entryDir, path: dir, info: info}); err != nil {
		return err
	}
	return w.each(dir, func(_, path string, info fs.FileInfo) error {
		return w.visit(entry{kind: kind, path: path, info: info})
	})
}

func (w *walker) fingerprint(fp Key, dir string, info fs.FileInfo) error {
	if err := w.visit(entry{kind: entryDir, path: dir, info: info}); err != nil {
		return err
	}
	err := w.each(dir, func(base, path string, info fs.FileInfo) error {
		switch {
		case base == manifestFile:
			kind := entryManifest
			if !info.Mode().IsRegular() {
				kind = entryNotRegular
			}
			return w.visit(entry{kind: kind, path: path, info: info, name: Name{Fingerprint: fp, Class: ClassManifest}})
		case base == tailsDir && info.IsDir():
			return w.tails(fp, path, info)
		case isShard(base) && info.IsDir():
			return w.pages(path, info, Name{Fingerprint: fp, Class: ClassPage})
		}
		return w.visit(entry{kind: entryForeign, path: path, info: info})
	})
	if err != nil || w.leave == nil {
		return err
	}
	return w.leave(fp)
}

// tails visits the two levels of directories that hold a fingerprint's tails.
func (w *walker) tails(fp Key, dir string, info fs.FileInfo) error {
	if err := w.visit(entry{kind: entryDir, path: dir, info: info}); err != nil {
		return err
	}
	return w.each(dir, func(base, path string, info fs.FileInfo) error {
		if !isShard(base) || !info.IsDir() {
			return w.visit(entry{kind: entryForeign, path: path, info: info})
		}
		if err := w.visit(entry{kind: entryDir, path: path, info: info}); err != nil {
			return err
		}
		return w.each(path, func(base, path string, info fs.FileInfo) error {
			parent, err := ParseKey(base)
			if err != nil || !info.IsDir() {
				return w.visit(entry{kind: entryForeign, path: path, info: info})
			}
			return w.pages(path, info, Name{Fingerprint: fp, Class: ClassTail, Parent: parent})
		})
	})
}

// pages visits the page files in dir; all but their Key is in like.
func (w *walker) pages(dir string, info fs.FileInfo, like Name) error {
	if err := w.visit(entry{kind: entryDir, path: dir, info: info}); err != nil {
		return err
	}
	return w.each(dir, func(base, path string, info fs.FileInfo) error {
		e := entry{kind: entryForeign, path: path, info: info, name: like}
		key, ok := parsePageFile(base)
		e.name.Key = key
		switch {
		case !ok:
		case !info.Mode().IsRegular():
			e.kind = entryNotRegular
		case path != w.t.path(e.name):
			e.kind = entryLost
		default:
			e.kind = entryPage
		}
		return w.visit(e)
	})
}
