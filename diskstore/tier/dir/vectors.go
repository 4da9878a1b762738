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

// vectorsExt ends the name of a file of vectors, which is beside its page or tail. The file goes with the page;
// a listing removes one without a page. Its content may be lost and is not trusted.
const vectorsExt = ".kvv"

// vectorsPath returns the path below <root>/v1 of the vectors of a page or tail.
func vectorsPath(page pagefile.Name) string {
	return strings.TrimSuffix(relPath(page), PageExt) + vectorsExt
}

// Vectors returns the vectors of a page or tail, nil without a readable file of them.
func (t *records) Vectors(ctx context.Context, page pagefile.Name) ([]byte, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	content, err := t.readOwn(ctx, vectorsPath(page))
	if tier.NoAnswer(err) || ctx.Err() != nil {
		return nil, t.opFailed(err)
	}
	return content, nil
}

// PutVectors replaces the vectors of a page or tail, and returns their physical bytes. A power cut may lose
// or damage them. PutVectors returns tier.ErrNotFound without the page.
func (t *records) PutVectors(ctx context.Context, page pagefile.Name, content []byte) (int64, error) {
	if err := t.Ready(ctx); err != nil {
		return 0, classify(err)
	}
	at := vectorsPath(page)
	path := filepath.Join(t.base, at)
	if fi, err := t.FS.Lstat(path); err == nil && !fi.Mode().IsRegular() {
		_ = t.FS.Remove(path)
	}
	if err := t.writeOwn(at, content, false); err != nil {
		return 0, t.opFailed(err)
	}
	// A process that has removed the page meanwhile may have looked for vectors before these were there.
	if _, err := t.FS.Lstat(t.Path(page)); errors.Is(err, fs.ErrNotExist) {
		_ = t.FS.Remove(path)
		return 0, tier.ErrNotFound
	}
	return t.Beside(ctx, page), nil
}

// Beside returns the physical bytes of the vectors of a page or tail.
func (r *root) Beside(_ context.Context, page pagefile.Name) int64 {
	if r.shared {
		return 0
	}
	fi, err := r.FS.Lstat(filepath.Join(r.base, vectorsPath(page)))
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	return r.FS.PhysicalBytes(fi)
}

// dropVectors removes the vectors of a page that was removed. A listing removes those that stay after an error.
func (r *root) dropVectors(page pagefile.Name) {
	if !r.shared && page.Class != pagefile.ClassManifest {
		_ = r.FS.Remove(filepath.Join(r.base, vectorsPath(page)))
	}
}

// besides are the vectors that a listing of pages has met.
type besides struct {
	*root
	found map[pagefile.Name]Entry
}

func (b *besides) add(e Entry) {
	if b.found == nil {
		b.found = make(map[pagefile.Name]Entry)
	}
	b.found[e.Name] = e
}

// join counts vectors with their pages, and removes those without a page: their process died between both
// files, or the page was removed by hand.
func (b *besides) join(pages []tier.Info) {
	for i, page := range pages {
		if e, ok := b.found[page.Name]; ok {
			pages[i].Physical += b.FS.PhysicalBytes(e.Info)
			delete(b.found, page.Name)
		}
	}
	for _, e := range b.found {
		_ = b.FS.Remove(e.Path)
	}
}
