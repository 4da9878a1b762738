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

// ImportOptions are the options of an import.
type ImportOptions struct {
	// Open opens the store after the whole archive was found good. Required.
	Open func(ctx context.Context, fingerprint pagefile.Key, m tier.Manifest) (PageStore, error)

	// Accept is called with the manifest before pages are read, and returns an error to refuse
	// the archive; nil accepts every manifest.
	Accept func(tier.Manifest) error

	// Progress is called with the bytes of pages done so far and the bytes to do. Each page
	// counts twice: for its check and for storing it. May be nil.
	Progress func(done, total int64)
}

// Imported describes the pages that Import stored.
type Imported struct {
	Manifest ArchiveManifest
	Pages    int // tails included
	Tokens   int
	Bytes    int64 // of the page files in the archive
}

// archived is a page file inside an archive.
type archived struct {
	r    io.ReaderAt
	off  int64
	name pagefile.Name
	size int64
}

func (a *archived) Size() int64 { return a.size }

func (a *archived) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if int64(len(p)) > a.size-off {
		return io.ErrUnexpectedEOF
	}
	_, err := io.ReadFull(io.NewSectionReader(a.r, a.off+off, int64(len(p))), p)
	return err
}

// Import stores the pages of an archive of size bytes. Import reads the archive twice: nothing is
// stored before every byte of every page was checked and the pages were found to be one sequence.
//
// Import returns ErrArchive for a file that is not a whole archive, pagefile.ErrDamaged or
// pagefile.ErrMismatch for a bad page, Accept's error, and the errors of Open and of the store.
func Import(ctx context.Context, opt ImportOptions, file io.ReaderAt, size int64) (Imported, error) {
	im := &importer{ctx: ctx, opt: opt, file: file, size: size}
	if err := im.scan(); err != nil {
		return Imported{}, err
	}
	if err := im.check(); err != nil {
		return Imported{}, err
	}
	if err := im.store(); err != nil {
		return Imported{}, err
	}
	return Imported{Manifest: im.manifest, Pages: len(im.pages), Tokens: im.manifest.Tokens, Bytes: im.bytes}, nil
}

type importer struct {
	ctx  context.Context
	opt  ImportOptions
	file io.ReaderAt
	size int64

	manifest    ArchiveManifest
	fingerprint pagefile.Key
	pages       []*archived
	bytes       int64 // of all pages
	done        int64
}

func (im *importer) progress(n int64) {
	im.done += n
	if im.opt.Progress != nil {
		im.opt.Progress(im.done, 2*im.bytes)
	}
}

// scan finds the pages in the archive. scan reads the manifest and the tar headers; neither is
// trusted before the pages are checked.
func (im *importer) scan() error {
	in := io.NewSectionReader(im.file, 0, im.size)
	tr := tar.NewReader(in)
	text, err := im.next(tr, dir.ManifestFile, maxArchiveManifestBytes)
	if err != nil {
		return err
	}
	if err := im.readManifest(tr, text); err != nil {
		return err
	}
	for _, key := range im.manifest.Pages {
		size, err := im.next(tr, key+dir.PageExt, math.MaxInt64)
		if err != nil {
			return err
		}
		off, err := in.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if size > im.size-off {
			return im.refuse("it ends in the middle of page %s", key)
		}
		im.pages = append(im.pages, &archived{r: im.file, off: off, size: size})
		im.bytes += size
	}
	if h, err := tr.Next(); err == nil {
		return im.refuse("there is %q after the last page", h.Name)
	} else if !errors.Is(err, io.EOF) {
		return im.refuse("%v", err)
	}
	return nil
}

// refuse returns an ErrArchive.
func (im *importer) refuse(format string, args ...any) error {
	return fmt.Errorf("read archive: "+format+": %w", append(args, ErrArchive)...)
}

// next moves to the next file, which must have the given name, and returns the file's size.
func (im *importer) next(tr *tar.Reader, name string, limit int64) (int64, error) {
	h, err := tr.Next()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, im.refuse("it ends where %s should begin", name)
	case err != nil:
		return 0, im.refuse("look for %s: %v", name, err)
	case h.Typeflag != tar.TypeReg:
		return 0, im.refuse("%q is not a regular file", h.Name)
	case h.Name != name:
		return 0, im.refuse("found %q, want %s", h.Name, name)
	case h.Size > limit:
		return 0, im.refuse("%s is %d bytes", name, h.Size)
	}
	return h.Size, nil
}

// readManifest reads and checks the archive's manifest.
func (im *importer) readManifest(r io.Reader, size int64) error {
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return im.refuse("it ends in the middle of its manifest")
	}
	m := &im.manifest
	if err := json.Unmarshal(text, m); err != nil {
		return im.refuse("parse its manifest: %v", err)
	}
	fp, err := pagefile.ParseKey(m.Fingerprint)
	switch {
	case m.Format != archiveFormat:
		return im.refuse("its manifest has format %q, want %q", m.Format, archiveFormat)
	case m.Version != archiveVersion || m.Schema != pagefile.Schema:
		return im.refuse("it has version %d with pages of schema %d, this program reads %d and %d",
			m.Version, m.Schema, archiveVersion, pagefile.Schema)
	case err != nil || fp.IsZero():
		return im.refuse("its fingerprint is %q", m.Fingerprint)
	case len(m.Pages) == 0 || len(m.Pages) > maxArchivePages:
		return im.refuse("it has %d pages, want 1 to %d", len(m.Pages), maxArchivePages)
	case m.PageTokens < 1 || m.PageTokens > pagefile.MaxTokens:
		return im.refuse("its pages are of %d tokens", m.PageTokens)
	case identityBytes(m.Identity) > maxIdentityBytes:
		return im.refuse("its identity is larger than %d bytes", maxIdentityBytes)
	}
	im.fingerprint = fp
	if im.opt.Accept != nil {
		return im.opt.Accept(m.Manifest)
	}
	return nil
}

// maxIdentityBytes keeps a stored manifest readable: JSON encodes a byte in at most six bytes,
// and readers read at most MaxManifestBytes.
const maxIdentityBytes = tier.MaxManifestBytes / 8

// identityBytes is the size of an identity's texts.
func identityBytes(identity map[string]string) int {
	n := 0
	for key, value := range identity {
		n += len(key) + len(value) + 16 // quotes, colon, indentation
	}
	return n
}

// check reads every byte of every page, in little memory, and sets the name of each page from
// the page's content.
func (im *importer) check() error {
	s, err := pagefile.NewChecker(im.progress)
	if err != nil {
		return err
	}
	defer s.Close()
	parent, start := im.fingerprint, 0
	for i, page := range im.pages {
		h, err := s.Check(im.ctx, page)
		if err != nil {
			return fmt.Errorf("check page %d (%s): %w", i, im.manifest.Pages[i], err)
		}
		if err := im.checkPlace(h, i, parent, start); err != nil {
			return fmt.Errorf("check page %d (%s): %w", i, im.manifest.Pages[i], err)
		}
		page.name = h.Name()
		parent, start = h.Key, start+len(h.Tokens)
	}
	if start != im.manifest.Tokens {
		return im.refuse("its pages have %d tokens, its manifest says %d", start, im.manifest.Tokens)
	}
	return nil
}

// checkPlace returns pagefile.ErrMismatch unless a page continues the previous page.
func (im *importer) checkPlace(h *pagefile.Header, i int, parent pagefile.Key, start int) error {
	switch {
	case h.Lossy():
		return pagefile.Mismatch("its rows are lossy")
	case h.Fingerprint != im.fingerprint:
		return pagefile.Mismatch("fingerprint is %v, want %v", h.Fingerprint, im.fingerprint)
	case h.PageTokens != im.manifest.PageTokens:
		return pagefile.Mismatch("page size is %d tokens, want %d", h.PageTokens, im.manifest.PageTokens)
	case h.Parent != parent:
		return pagefile.Mismatch("parent is %v, want %v", h.Parent, parent)
	case int64(h.Start) != int64(start):
		return pagefile.Mismatch("page starts at token %d, want %d", h.Start, start)
	case h.Key.String() != im.manifest.Pages[i]:
		return pagefile.Mismatch("key is %v", h.Key)
	case h.Tail() && i != len(im.pages)-1:
		return pagefile.Mismatch("it is a tail, and not the last page")
	case int64(h.Layout.Size()) > maxArchivePageBytes:
		return pagefile.Mismatch("its rows are %d bytes, more than %d cannot be imported", h.Layout.Size(), int64(maxArchivePageBytes))
	}
	return nil
}

// store puts the pages into the store.
func (im *importer) store() (err error) {
	s, err := im.opt.Open(im.ctx, im.fingerprint, im.manifest.Manifest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for i, page := range im.pages {
		if err := im.put(s, page); err != nil {
			return fmt.Errorf("import page %d of %d: %w", i+1, len(im.pages), err)
		}
		im.progress(page.size)
	}
	return nil
}

// put stores one page after reading and checking the page again: another process may be
// writing to the archive's file.
func (im *importer) put(s PageStore, page *archived) error {
	h, err := pagefile.ReadHeader(im.ctx, page)
	if err != nil {
		return err
	}
	if err := h.CheckName(page.name); err != nil {
		return err
	}
	codec, err := pagefile.NewCodec()
	if err != nil {
		return err
	}
	payload := make([]byte, h.Layout.Size())
	if err := pagefile.ReadPayload(im.ctx, page, h, h.All(), codec, payload); err != nil {
		return err
	}
	return s.Put(im.ctx, &pagefile.Page{
		Parent: h.Parent, Start: h.Start, Tokens: h.Tokens, Media: h.Media, Layout: h.Layout, Payload: payload,
	})
}
