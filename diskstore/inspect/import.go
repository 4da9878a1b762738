package inspect

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// PageStore stores the pages of an archive; diskstore.Store implements it.
type PageStore interface {
	Put(ctx context.Context, p *pagefile.Page) error
	Close() error
}

// Import stores the pages of an archive in the store that open returns for the archive's manifest.
// Import reads the archive twice: open is called, and pages are stored, only after every byte of every
// page was checked and the pages were found to be one sequence. progress is called with the bytes of
// the archive read so far and those to read.
//
// Import returns ErrArchive for a file that is not a whole archive, pagefile.ErrDamaged or
// pagefile.ErrMismatch for a bad page, and the errors of open and of the store.
func Import(ctx context.Context, file *io.SectionReader, open func(tier.Manifest) (PageStore, error), progress func(done, total int64)) (m *ArchiveManifest, err error) {
	a, err := readArchive(file)
	if err != nil {
		return nil, err
	}
	passed := func(rounds int64) func(at int64) {
		return func(at int64) { progress(rounds*file.Size()+at, 2*file.Size()) }
	}
	c, err := pagefile.NewChecker(nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	check := func(page archived, _ *pagefile.Header) error {
		_, err := c.Check(ctx, page)
		return err
	}
	if err := a.pages(ctx, check, passed(0)); err != nil {
		return nil, err
	}
	s, err := open(a.Manifest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// Another process may write to the file meanwhile: pages are checked again.
	put := func(page archived, h *pagefile.Header) error { return page.put(ctx, s, h) }
	if err := a.pages(ctx, put, passed(1)); err != nil {
		return nil, err
	}
	return &a.ArchiveManifest, nil
}

// archive is an archive whose manifest was read. The manifest is not trusted before the pages are checked.
type archive struct {
	ArchiveManifest
	fingerprint pagefile.Key
	file        *io.SectionReader
}

func refused(format string, args ...any) error {
	return fmt.Errorf("read archive: "+format+": %w", append(args, ErrArchive)...)
}

func readArchive(file *io.SectionReader) (*archive, error) {
	a := &archive{file: file}
	tr, size, err := a.begin()
	if err != nil {
		return nil, err
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(tr, text); err != nil {
		return nil, refused("it ends in the middle of its manifest")
	}
	m := &a.ArchiveManifest
	if err := json.Unmarshal(text, m); err != nil {
		return nil, refused("parse its manifest: %v", err)
	}
	a.fingerprint, err = pagefile.ParseKey(m.Fingerprint)
	switch {
	case m.Format != archiveFormat:
		return nil, refused("its manifest has format %q, want %q", m.Format, archiveFormat)
	case m.Version != archiveVersion || m.Schema != pagefile.Schema:
		return nil, refused("it has version %d with pages of schema %d, this program reads %d and %d",
			m.Version, m.Schema, archiveVersion, pagefile.Schema)
	case err != nil || a.fingerprint.IsZero():
		return nil, refused("its fingerprint is %q", m.Fingerprint)
	case len(m.Pages) == 0 || len(m.Pages) > maxArchivePages:
		return nil, refused("it has %d pages, want 1 to %d", len(m.Pages), maxArchivePages)
	case m.PageTokens < 1 || m.PageTokens > pagefile.MaxTokens:
		return nil, refused("its pages are of %d tokens", m.PageTokens)
	case len(fmt.Sprint(m.Identity)) > maxIdentityBytes:
		return nil, refused("its identity is larger than %d bytes", maxIdentityBytes)
	}
	return a, nil
}

// maxIdentityBytes keeps a stored manifest readable: JSON encodes a byte in at most six bytes,
// and readers read at most MaxManifestBytes.
const maxIdentityBytes = tier.MaxManifestBytes / 8

// begin reads the archive from its beginning, and returns the size of its manifest, which is next.
func (a *archive) begin() (tr *tar.Reader, size int64, err error) {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return nil, 0, err
	}
	tr = tar.NewReader(a.file)
	size, err = next(tr, dir.ManifestFile, maxArchiveManifestBytes)
	return tr, size, err
}

// next moves to the next file, which must have the given name, and returns the file's size.
func next(tr *tar.Reader, name string, limit int64) (int64, error) {
	h, err := tr.Next()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, refused("it ends where %s should begin", name)
	case err != nil:
		return 0, refused("look for %s: %v", name, err)
	case h.Typeflag != tar.TypeReg:
		return 0, refused("%q is not a regular file", h.Name)
	case h.Name != name:
		return 0, refused("found %q, want %s", h.Name, name)
	case h.Size > limit:
		return 0, refused("%s is %d bytes", name, h.Size)
	}
	return h.Size, nil
}

// pages passes each page to use, in order, after its header was found to continue the previous page.
// passed is called with the offset behind each page.
func (a *archive) pages(ctx context.Context, use func(archived, *pagefile.Header) error, passed func(at int64)) error {
	tr, _, err := a.begin()
	if err != nil {
		return err
	}
	before := &pagefile.Header{Key: a.fingerprint}
	a.Bytes = 0
	for i, key := range a.Pages {
		size, err := next(tr, key+dir.PageExt, math.MaxInt64)
		if err != nil {
			return err
		}
		at, err := a.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if size > a.file.Size()-at {
			return refused("it ends in the middle of page %s", key)
		}
		page := archived{io.NewSectionReader(a.file, at, size)}
		h, err := pagefile.ReadHeader(ctx, page)
		if err == nil {
			err = a.checkPlace(h, i, before)
		}
		if err == nil {
			err = use(page, h)
		}
		if err != nil {
			return fmt.Errorf("import page %d of %d (%s): %w", i+1, len(a.Pages), key, err)
		}
		passed(at + size)
		before, a.Bytes = h, a.Bytes+size
	}
	if h, err := tr.Next(); err == nil {
		return refused("there is %q after the last page", h.Name)
	} else if !errors.Is(err, io.EOF) {
		return refused("%v", err)
	}
	if end := int(before.Start) + len(before.Tokens); end != a.Tokens {
		return refused("its pages have %d tokens, its manifest says %d", end, a.Tokens)
	}
	passed(a.file.Size())
	return nil
}

// checkPlace returns pagefile.ErrMismatch unless the header of page i continues the previous page.
func (a *archive) checkPlace(h *pagefile.Header, i int, before *pagefile.Header) error {
	key, _ := pagefile.ParseKey(a.Pages[i]) // that of no page, if it is none
	want := pagefile.Name{Fingerprint: a.fingerprint, Key: key}
	if i == len(a.Pages)-1 {
		want.Class = h.Name().Class // the last may be a tail
	}
	start := uint64(before.Start) + uint64(len(before.Tokens))
	switch {
	case h.Lossy():
		return pagefile.Mismatch("its rows are lossy")
	case h.PageTokens != a.PageTokens:
		return pagefile.Mismatch("page size is %d tokens, want %d", h.PageTokens, a.PageTokens)
	case h.Parent != before.Key:
		return pagefile.Mismatch("parent is %v, want %v", h.Parent, before.Key)
	case uint64(h.Start) != start:
		return pagefile.Mismatch("page starts at token %d, want %d", h.Start, start)
	case int64(h.Layout.Size()) > maxArchivePageBytes:
		return pagefile.Mismatch("its rows are %d bytes, more than %d cannot be imported", h.Layout.Size(), int64(maxArchivePageBytes))
	}
	return h.CheckName(want)
}

type archived struct{ *io.SectionReader }

func (page archived) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := page.SectionReader.ReadAt(p, off)
	if n == len(p) {
		return nil // io.EOF may come with the last byte
	}
	return err
}

// put stores a page, after all of it was read and checked.
func (page archived) put(ctx context.Context, s PageStore, h *pagefile.Header) error {
	codec, err := pagefile.NewCodec()
	if err != nil {
		return err
	}
	payload := make([]byte, h.Layout.Size())
	if err := pagefile.ReadPayload(ctx, page, h, h.All(), codec, payload); err != nil {
		return err
	}
	return s.Put(ctx, &pagefile.Page{
		Parent: h.Parent, Start: h.Start, Tokens: h.Tokens, Media: h.Media, Layout: h.Layout, Payload: payload,
	})
}
