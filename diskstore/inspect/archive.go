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
}

// Export writes the pages of chain, a result of Chain, and their manifest to w as one archive
// for Import. Every byte of a page is checked before the page's last bytes are written; after an error
// the written bytes are not an archive. Export returns ErrLossy for a chain with a lossy page, and has
// written nothing. progress is called with the bytes of each step.
func (r *Roots) Export(ctx context.Context, chain []PageFile, w io.Writer, progress func(bytes int64)) (*ArchiveManifest, error) {
	if len(chain) == 0 || len(chain) > maxArchivePages {
		return nil, fmt.Errorf("export %d pages, want 1 to %d: %w", len(chain), maxArchivePages, ErrArguments)
	}
	a := &ArchiveManifest{Format: archiveFormat, Version: archiveVersion}
	for _, page := range chain {
		h, _, err := r.header(ctx, page.Name)
		if err != nil {
			return nil, err
		}
		if h.Lossy() {
			return nil, fmt.Errorf("export page %v, at token %d: %w", page.Key, h.Start, ErrLossy)
		}
		a.Pages, a.Tokens = append(a.Pages, page.Key.String()), int(h.Start)+len(h.Tokens)
	}
	fp := chain[0].Fingerprint
	m, err := r.Manifest(ctx, fp)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %v, which an archive needs; a server that loads the model writes it: %w", fp, err)
	}
	a.Manifest = *m
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
	for _, page := range chain {
		if err := r.exportPage(ctx, page.Name, tw, progress); err != nil {
			return nil, err
		}
	}
	return a, tw.Close()
}

// exportPage appends one page to an archive.
func (r *Roots) exportPage(ctx context.Context, name pagefile.Name, tw *tar.Writer, progress func(bytes int64)) error {
	blob, _, file, err := r.openPage(ctx, name)
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
		progress(int64(len(p)))
		_, err := tw.Write(p)
		return err
	})
	if err != nil {
		return fmt.Errorf("export page %v: %w", name.Key, err)
	}
	return nil
}
