package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/progress"
)

// measureQuality compares an engine that restored the pages of each encoding with the engine that
// computed them.
func (r *run) measureQuality(ctx context.Context) error {
	var exact *Quality
	for i, c := range r.codecs {
		res := &r.results[i]
		if res.Lossless && exact != nil {
			res.Quality = *exact
			continue
		}
		if err := r.Steps.Do("restore "+c.name, func(step *progress.Step) (_ string, err error) {
			res.Quality, err = r.restored(ctx, c, step.Progress)
			return "", err
		}); err != nil {
			return fmt.Errorf("restore pages in %s: %w", c.name, err)
		}
		if res.Lossless {
			exact = &res.Quality
		}
	}
	return nil
}

// restored stores decoded pages, lets an engine restore them, and computes the quality.
func (r *run) restored(ctx context.Context, c codec, progress func(done, total int64)) (q Quality, err error) {
	root := filepath.Join(r.dir, "decoded")
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	if err := r.store(ctx, root, c); err != nil {
		return q, err
	}
	e, err := r.start(ctx, root)
	if err != nil {
		return q, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	got, err := r.distributions(ctx, e, progress)
	if err != nil {
		return q, err
	}
	q = compare(r.reference, got)
	if q.Compared == 0 {
		return q, errors.New("the engine gave no probabilities; give another text")
	}
	q.Answered, err = r.answered(ctx, e)
	q.Asked = len(r.Questions)
	return q, err
}

// store writes the decoded pages into a store of their own, under the names of the exact ones.
func (r *run) store(ctx context.Context, root string, c codec) (err error) {
	s, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: r.kept.fingerprint, Identity: r.kept.identity, PageTokens: PageTokens,
		Local: diskstore.TierConfig{Root: root},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for i := range r.kept.pages {
		p := r.kept.pages[i]
		if p.Payload, err = r.roundTrip(&p, c); err != nil {
			return err
		}
		if err := s.Put(ctx, &p); err != nil {
			return fmt.Errorf("store page %d of %d: %w", i+1, len(r.kept.pages), err)
		}
	}
	return nil
}

// roundTrip returns the payload of a page, encoded and decoded.
func (r *run) roundTrip(p *pagefile.Page, c codec) ([]byte, error) {
	out := make([]byte, len(p.Payload))
	for i, s := range p.Layout.Sections() {
		rows := p.Layout.Rows(p.Payload, i)
		id, stored := c.encode(rows, s)
		if id == encoding.Raw {
			stored = rows
		}
		if err := r.pages.Decode(id, stored, p.Layout.Rows(out, i)); err != nil {
			return nil, fmt.Errorf("decode a section: %w", err)
		}
	}
	return out, nil
}

// answerTokens is the longest answer to a question, in tokens.
const answerTokens = 24

// answered asks the questions after the restored text, and counts the right answers.
func (r *run) answered(ctx context.Context, e *engine) (right int, err error) {
	text := strings.Join(r.pieces[:r.Tokens], "")
	for _, q := range r.Questions {
		a, err := e.Ask(ctx, lab.Question{Prompt: text + q.Question, Tokens: answerTokens, Raw: true, Private: true})
		if err != nil {
			return right, fmt.Errorf("ask %q: %w", q.Question, err)
		}
		if answers(a.Text, q.Answer) {
			right++
		}
	}
	return right, nil
}

// answers reports whether an answer begins with the expected words.
func answers(text, want string) bool {
	got, wanted := strings.Fields(text), strings.Fields(want)
	return len(got) >= len(wanted) && slices.Equal(got[:len(wanted)], wanted)
}
