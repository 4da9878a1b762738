package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/bench/lab"
)

// compute runs the text through an engine, takes the pages, and computes the probabilities after
// rows that never left the engine.
func (r *run) compute(ctx context.Context) (err error) {
	root := filepath.Join(r.dir, "exact")
	e, err := r.start(ctx, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := r.runText(ctx, e); err != nil {
		return err
	}
	if err := e.flush(ctx); err != nil {
		return err
	}
	if err := r.takePages(ctx, root); err != nil {
		return err
	}
	r.reference, err = r.distributions(ctx, e, func(int64, int64) {})
	return err
}

const (
	// firstBytes is the size of the first prompt for each token that is needed.
	firstBytes = 2
	// attemptsMax bounds the prompts until one has the needed number of tokens.
	attemptsMax = 16
	// tokensOver is the number of tokens beyond those needed that a prompt aims at.
	tokensOver = 48
)

// runText computes a beginning of the text with at least the needed tokens. The engine alone can
// count tokens, so the length is found by trying; a longer prompt continues the one before.
func (r *run) runText(ctx context.Context, e *engine) error {
	need := r.Tokens + r.Scored
	for size, n := firstBytes*need, 0; n < attemptsMax; n++ {
		text := beginning(r.Text, size)
		a, err := e.ask(ctx, text, 0, false)
		switch {
		case errors.Is(err, errTooLong):
			size = size * 3 / 4
			continue
		case err != nil:
			return err
		case a.prompt >= need:
			return nil
		case len(text) == len(r.Text):
			return fmt.Errorf("measure with the text: it has %d tokens; give a text of %d or more", a.prompt, need)
		}
		size = len(text) * (need + tokensOver) / a.prompt
	}
	return fmt.Errorf("measure with the text: no beginning of it has %d to %d tokens; give another text", need, r.context())
}

// beginning returns the first bytes of a text, whole characters alone.
func beginning(text string, size int) string {
	if size >= len(text) {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// takePages reads the pages of the text.
func (r *run) takePages(ctx context.Context, root string) error {
	paths, err := lab.Pages(root)
	if err != nil {
		return err
	}
	type stored struct {
		path string
		*pagefile.Header
	}
	pages := map[pagefile.Key]stored{}
	var last stored
	for _, path := range paths {
		h, err := inspect.Header(vfs.OS, path)
		if err != nil {
			return err
		}
		if h.PageTokens != PageTokens {
			return fmt.Errorf("take the pages of the text: a page of %s has %d tokens, not %d; choose a model without a short window", r.Model.Path, h.PageTokens, PageTokens)
		}
		pages[h.Key] = stored{path, h}
		if !h.Tail() && int(h.Start) == r.Tokens+r.Scored-PageTokens {
			last = pages[h.Key]
		}
	}
	var tokens []int32
	for at, ok := last, last.Header != nil; ok; at, ok = pages[at.Parent] {
		tokens = slices.Concat(at.Tokens, tokens)
		if int(at.Start) < r.Tokens {
			page, err := r.readPage(ctx, at.path, at.Header)
			if err != nil {
				return err
			}
			r.kept.pages = append(r.kept.pages, page)
		}
	}
	slices.Reverse(r.kept.pages)
	if len(tokens) != r.Tokens+r.Scored {
		return fmt.Errorf("take the pages of the text: %d of %d tokens are stored; is the disk full?", len(tokens), r.Tokens+r.Scored)
	}
	r.kept.fingerprint = last.Fingerprint
	manifest, err := inspect.Manifest(vfs.OS, filepath.Join(root, "v1", last.Fingerprint.String(), "manifest.json"), last.Fingerprint)
	if err != nil {
		return fmt.Errorf("take the pages of the text: %w", err)
	}
	r.kept.identity = manifest.Identity
	return r.split(tokens)
}

// readPage reads a whole page.
func (r *run) readPage(ctx context.Context, path string, h *pagefile.Header) (pagefile.Page, error) {
	blob, err := dir.OpenFile(vfs.OS, path, pagefile.Name{})
	if err != nil {
		return pagefile.Page{}, fmt.Errorf("read %s: %w", path, err)
	}
	defer blob.Close()
	p := pagefile.Page{Parent: h.Parent, Start: h.Start, Tokens: h.Tokens, Media: h.Media, Layout: h.Layout, Payload: make([]byte, h.Layout.Size())}
	if err := pagefile.ReadPayload(ctx, blob, h, h.All(), r.pages, p.Payload); err != nil {
		return pagefile.Page{}, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}

// split finds the text of each token. A token before the text, such as one that begins a
// sequence, has none.
func (r *run) split(tokens []int32) error {
	rest := r.Text
	for i, t := range tokens {
		piece, err := r.Model.Decode([]int32{t})
		if err != nil {
			return err
		}
		after, ok := strings.CutPrefix(rest, piece)
		switch {
		case ok:
			rest = after
		case i == 0:
			piece = ""
		default:
			return fmt.Errorf("measure with the text: token %d is %q in the model's file, and the text goes on with %q; give a text without such characters", i, piece, beginning(rest, len(piece)))
		}
		r.pieces = append(r.pieces, piece)
	}
	return nil
}
