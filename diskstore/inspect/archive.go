package inspect

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

/*
An archive of one conversation, version 1: an uncompressed tar of

	manifest.json   an ArchiveManifest
	<key>.kvp       each page, as it is in a root, in the order of the sequence

and of nothing else. The manifest names every page, so that a truncated archive is
noticed. A page's name follows from its content.
*/
const (
	archiveFormat  = "kvtier conversation"
	archiveVersion = 1

	// maxArchivePages bounds the pages whose entries a reader keeps: 16 million tokens in
	// pages of the usual size.
	maxArchivePages = 1 << 16

	// maxArchiveManifestBytes is enough for the keys of maxArchivePages pages.
	maxArchiveManifestBytes = 8 << 20

	// maxArchivePageBytes is the largest payload of an imported page, which is assembled in memory.
	maxArchivePageBytes = 4 << 30
)

// ErrLossy reports a conversation of which no root has every page exact. An archive is for other
// machines, where nothing would tell lossy pages from exact ones.
var ErrLossy = errors.New("diskstore: pages of the conversation are only stored lossy; compute it again, and export it before its pages move to the remote tier")

// ErrArchive reports a file that is not an archive of a conversation, or only part of one.
var ErrArchive = errors.New("diskstore: not an archive of a conversation")

// ArchiveManifest is the content of an archive's manifest.json. Manifest is the manifest of
// the pages' fingerprint.
type ArchiveManifest struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	tier.Manifest
	Tokens int      `json:"tokens"`
	Pages  []string `json:"pages"` // keys, in order; only the last may name a tail

	Bytes int64 `json:"-"` // of the page files
}

// Export writes a page, all pages before it in the sequence and their manifest to w as one archive
// for Import. Every byte of a page is checked before the page's last bytes are written; after an error
// the written bytes are not an archive. Export returns the errors of Chain, and ErrLossy for a lossy
// page, before it writes. progress is called with the bytes of pages written and to write.
func (r *Roots) Export(ctx context.Context, last pagefile.Name, w io.Writer, progress func(done, total int64)) (*ArchiveManifest, error) {
	chain, err := r.Chain(ctx, last)
	if err != nil {
		return nil, err
	}
	if len(chain) > maxArchivePages {
		return nil, fmt.Errorf("export %d pages, want at most %d: %w", len(chain), maxArchivePages, ErrArguments)
	}
	a := &ArchiveManifest{Format: archiveFormat, Version: archiveVersion}
	for _, page := range chain {
		if page.Header.Lossy() {
			return nil, fmt.Errorf("export page %v, at token %d: %w", page.Key, page.Header.Start, ErrLossy)
		}
		a.Pages, a.Tokens, a.Bytes = append(a.Pages, page.Key.String()), page.end(), a.Bytes+page.Bytes
	}
	m, err := r.Manifest(ctx, last.Fingerprint)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %v, which an archive needs; a server that loads the model writes it: %w", last.Fingerprint, err)
	}
	a.Manifest, a.Origin = *m, "" // a place on this machine
	text, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	tw := tar.NewWriter(w)
	header := tar.Header{Name: dir.ManifestFile, Mode: rightsFile, Size: int64(len(text)), Format: tar.FormatPAX}
	if err := tw.WriteHeader(&header); err != nil {
		return nil, err
	}
	if _, err := tw.Write(text); err != nil {
		return nil, err
	}
	var done int64
	for _, page := range chain {
		if err := r.exportPage(ctx, page.Name, tw, func(n int) { done += int64(n); progress(done, a.Bytes) }); err != nil {
			return nil, fmt.Errorf("export page %v: %w", page.Key, err)
		}
	}
	return a, tw.Close()
}

func (r *Roots) exportPage(ctx context.Context, name pagefile.Name, tw *tar.Writer, wrote func(bytes int)) error {
	blob, file, err := r.openPage(ctx, name)
	if err != nil {
		return err
	}
	defer blob.Close()
	header := tar.Header{
		Name: name.Key.String() + dir.PageExt, Mode: rightsFile, Size: file.Bytes, ModTime: file.Used, Format: tar.FormatPAX,
	}
	if err := tw.WriteHeader(&header); err != nil {
		return err
	}
	_, err = pagefile.Stream(ctx, blob, func(p []byte) error {
		wrote(len(p))
		_, err := tw.Write(p)
		return err
	})
	return err
}
