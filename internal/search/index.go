package search

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// partTokens is the text of a vector, in tokens of the model that stored it.
	partTokens = 64

	// batchTexts is the number of texts in a request. What a request has given is kept before the next.
	batchTexts = 16
)

// part is a text of a page.
type part struct {
	at     int // of its first token in the page
	tokens []int32
	text   string
}

// index brings vectors up to date.
type index struct {
	*Search
	model    [32]byte  // digest of the embedding model
	query    []float32 // of the words
	decoders map[pagefile.Key]decoder
	out      *Result
}

type decoder struct {
	Decoder
	err error
}

// load reads the vectors of a page and rates it, or reads its header alone. Without either, load reports false.
func (x *index) load(ctx context.Context, p *page) (ok bool, err error) {
	content, err := x.Pages.Vectors(ctx, p.name)
	if err != nil {
		return false, err
	}
	if place, vectors, err := decode(content, x.model, p.name.Key, len(x.query)); err == nil {
		p.place = place
		x.rate(p, vectors)
		return true, nil
	}
	h, err := tier.ReadHeader(ctx, x.Pages, p.name)
	switch {
	case tier.NoAnswer(err) || ctx.Err() != nil:
		return false, errors.Join(err, ctx.Err())
	case errors.Is(err, tier.ErrNotFound):
		return false, nil
	case err != nil:
		x.out.skip(p, "the page cannot be read; run kvtier check")
		return false, nil
	}
	p.place = place{Key: h.Key, Parent: h.Parent, Start: int(h.Start), Tokens: len(h.Tokens)}
	return true, nil
}

// rate gives a page the score of its best vector.
func (x *index) rate(p *page, vectors []vector) {
	p.rated, p.score = true, -1
	for _, v := range vectors {
		if score := v.score(x.query); score > p.score {
			p.score, p.at = score, v.at
		}
	}
	x.out.Vectors += len(vectors)
	x.out.Indexed++
}

// update embeds the text of a page, keeps the vectors beside it, and rates it.
func (x *index) update(ctx context.Context, p *page) error {
	h, err := tier.ReadHeader(ctx, x.Pages, p.name)
	if tier.NoAnswer(err) || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err != nil {
		return nil // it has left the tier
	}
	d := x.decoder(ctx, p.name.Fingerprint)
	if d.err != nil {
		x.out.skip(p, d.err.Error())
		return nil
	}
	parts, err := split(d, h.Tokens)
	if err != nil {
		x.out.skip(p, err.Error())
		return nil
	}
	var vectors []vector
	for begin := 0; begin < len(parts); begin += batchTexts {
		got, err := x.embed(ctx, d, parts[begin:min(begin+batchTexts, len(parts))])
		if err != nil {
			return err
		}
		vectors = append(vectors, got...)
	}
	x.rate(p, vectors)
	err = x.Put(ctx, p.name, encode(x.model, p.place, vectors))
	if errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	return err
}

// split divides the tokens of a page into parts, without those that have no text.
func split(d Decoder, tokens []int32) (parts []part, err error) {
	for at := 0; at < len(tokens); at += partTokens {
		p := part{at: at, tokens: tokens[at:min(at+partTokens, len(tokens))]}
		if p.text, err = d.Words(p.tokens); err != nil {
			return nil, err
		}
		if p.text != "" {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// embed returns the vectors of parts. A part that is too long for the model becomes two; a single token that is
// too long has no vector.
func (x *index) embed(ctx context.Context, d Decoder, parts []part) ([]vector, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.text
	}
	embedded, err := x.Embedder.Embed(ctx, texts)
	if !errors.Is(err, ErrTooLong) {
		if err != nil {
			return nil, err
		}
		x.out.Embedded += len(texts)
		vectors := make([]vector, len(parts))
		for i, p := range parts {
			vectors[i] = quantize(p.at, embedded[i])
		}
		return vectors, nil
	}
	first, second := parts[:len(parts)/2], parts[len(parts)/2:]
	if len(parts) == 1 {
		if first, second, err = halves(d, parts[0]); err != nil {
			return nil, err
		}
	}
	vectors, err := x.embed(ctx, d, first)
	if err != nil {
		return nil, err
	}
	more, err := x.embed(ctx, d, second)
	return append(vectors, more...), err
}

// halves divides a part, of a single token into nothing.
func halves(d Decoder, p part) (first, second []part, err error) {
	if len(p.tokens) == 1 {
		return nil, nil, nil
	}
	half := len(p.tokens) / 2
	if first, err = split(d, p.tokens[:half]); err != nil {
		return nil, nil, err
	}
	second, err = split(d, p.tokens[half:])
	for i := range first {
		first[i].at += p.at
	}
	for i := range second {
		second[i].at += p.at + half
	}
	return first, second, err
}

// decodersMax bounds the vocabularies in memory: a large one takes 50 MB.
const decodersMax = 4

// decoder returns the vocabulary of a fingerprint's model.
func (x *index) decoder(ctx context.Context, fingerprint pagefile.Key) decoder {
	d, ok := x.decoders[fingerprint]
	if ok {
		return d
	}
	if len(x.decoders) >= decodersMax {
		clear(x.decoders)
	}
	d.Decoder, d.err = x.Decoder(ctx, fingerprint)
	x.decoders[fingerprint] = d
	return d
}

// excerpt returns the text of a page's best part, "" if it is not known.
func (x *index) excerpt(ctx context.Context, p *page) string {
	h, err := tier.ReadHeader(ctx, x.Pages, p.name)
	d := x.decoder(ctx, p.name.Fingerprint)
	if err != nil || d.err != nil || p.at >= len(h.Tokens) {
		return ""
	}
	text, err := d.Words(h.Tokens[p.at:min(p.at+partTokens, len(h.Tokens))])
	if err != nil {
		return ""
	}
	return text
}

// skip counts a page whose text is not known.
func (r *Result) skip(p *page, why string) {
	for i, s := range r.Skipped {
		if s.Fingerprint == p.name.Fingerprint && s.Why == why {
			r.Skipped[i].Pages++
			return
		}
	}
	if len(r.Skipped) < skippedMax {
		r.Skipped = append(r.Skipped, Skipped{Fingerprint: p.name.Fingerprint, Why: why, Pages: 1})
	}
}

// skippedMax bounds the reasons that a result names.
const skippedMax = 1000
