package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/readahead"
)

const (
	// fileBytes is the least size of the rows in a page file: about that of a page of an 8B model in
	// f16. A disk gives smaller files more slowly.
	fileBytes = 32 << 20
	pageFiles = 6
)

// large returns pages of so many bytes of rows and more, or as many as a page's sections may hold: each
// has the layers of several pages of the text, whose pages take turns. Pages with other sections than the
// first are left out.
func (k *kept) large(bytes int) ([]pagefile.Page, error) {
	of := k.pages[0].Layout
	all := slices.DeleteFunc(slices.Clone(k.pages), func(p pagefile.Page) bool { return !p.Layout.Equal(of) })
	layers := 0
	for _, s := range of.Sections() {
		layers = max(layers, int(s.Layer)+1)
	}
	times := min(max(1, (bytes+of.Size()-1)/of.Size()), pagefile.MaxSections/of.Len(), (math.MaxUint16+1)/layers)
	var sections []pagefile.Section
	for i := range times {
		for _, s := range of.Sections() {
			s.Layer += uint16(i * layers)
			sections = append(sections, s)
		}
	}
	layout, err := pagefile.NewLayout(sections, of.Tokens())
	if err != nil {
		return nil, fmt.Errorf("lay out page files: %w", err)
	}
	pages := make([]pagefile.Page, pageFiles)
	for i := range pages {
		page := all[i%len(all)]
		page.Layout, page.Payload = layout, make([]byte, layout.Size())
		for j := range times {
			from := &all[(i*times+j)%len(all)]
			for s := range of.Len() {
				copy(layout.Rows(page.Payload, j*of.Len()+s), of.Rows(from.Payload, s))
			}
		}
		pages[i] = page
	}
	return pages, nil
}

// measureFiles writes large pages as files in each encoding, and reads them back.
func (r *run) measureFiles(ctx context.Context) error {
	pages, err := r.kept.large(r.fileBytes)
	if err != nil {
		return err
	}
	paths := make([][]string, len(r.codecs))
	for i, c := range r.codecs {
		folder := filepath.Join(r.dir, "files-"+c.name)
		if err := os.Mkdir(folder, 0o700); err != nil {
			return fmt.Errorf("make a directory for page files: %w", err)
		}
		for j := range pages {
			path := filepath.Join(folder, fmt.Sprintf("%04d.kvp", j))
			if err := r.writeFile(path, &pages[j], c); err != nil {
				return err
			}
			paths[i] = append(paths[i], path)
		}
	}
	size := pages[0].Layout.Size()
	r.buffers.New = func() any { buf := make([]byte, size); return &buf }
	cold, warm := make([]measure.Series, len(r.codecs)), make([]measure.Series, len(r.codecs))
	for range rounds {
		for i := range r.codecs {
			if err := r.readTwice(ctx, paths[i], int64(size*len(pages)), &cold[i], &warm[i]); err != nil {
				return err
			}
		}
	}
	for i := range r.codecs {
		res := &r.results[i]
		res.Restore, res.RestoreCached = cold[i].Median, warm[i].Median
	}
	return nil
}

// writeFile writes a page and makes it durable, so that it can leave the page cache.
func (r *run) writeFile(path string, p *pagefile.Page, c codec) error {
	encoded, err := pagefile.EncodeBy(r.kept.fingerprint, PageTokens, p, c.encode)
	if err != nil {
		return fmt.Errorf("encode a page in %s: %w", c.name, err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write a page file: %w", err)
	}
	defer f.Close()
	err = encoded.WriteTo(func(b []byte) error { _, err := f.Write(b); return err })
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("write a page file: %w", err)
	}
	return nil
}

// readTwice reads files of `rows` bytes of rows with an empty page cache, where the system can empty it,
// and with a full one.
func (r *run) readTwice(ctx context.Context, paths []string, rows int64, cold, warm *measure.Series) error {
	dropped := true
	for _, path := range paths {
		ok, err := measure.ForgetFile(path)
		if err != nil {
			return err
		}
		dropped = dropped && ok
	}
	for _, speed := range []*measure.Series{cold, warm} {
		started := time.Now()
		if err := r.readFiles(ctx, paths); err != nil {
			return err
		}
		if speed == warm || dropped {
			speed.Add(rate(rows, time.Since(started)))
		}
	}
	return nil
}

// pagesAtOnce is the number of page files that are read at a time, as in a restore.
const pagesAtOnce = 3

// readFiles reads, checks and decodes page files in order, a few at a time, as a restore does.
func (r *run) readFiles(ctx context.Context, paths []string) error {
	line := readahead.Begin(ctx, len(paths), pagesAtOnce, false, func(read func()) { go read() },
		func(ctx context.Context, i int) error {
			buf := r.buffers.Get().(*[]byte)
			defer r.buffers.Put(buf)
			return readInto(ctx, paths[i], r.pages, *buf)
		})
	var first error
	for read := line.Next(); read != nil; read = line.Next() {
		if err := <-read; err != nil && first == nil {
			line.Stop()
			first = err
		}
		line.Used()
	}
	return cmp.Or(first, ctx.Err())
}

func readInto(ctx context.Context, path string, codec *pagefile.Codec, buf []byte) error {
	blob, err := dir.OpenFile(vfs.OS, path, pagefile.Name{})
	if err != nil {
		return fmt.Errorf("read a page file: %w", err)
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err == nil {
		err = pagefile.ReadPayload(ctx, blob, h, h.All(), codec, buf)
	}
	if err != nil {
		return fmt.Errorf("read a page file: %w", err)
	}
	return nil
}
