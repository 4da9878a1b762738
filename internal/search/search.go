package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Embedder turns texts into vectors of length 1, all with as many numbers.
type Embedder interface {
	// Open returns a digest of the model.
	Open(ctx context.Context) ([32]byte, error)

	// Embed returns a vector for each text, or ErrTooLong if a text is too long.
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// Decoder is the vocabulary of a model.
type Decoder interface {
	// Words returns the text of tokens, without tokens that are none.
	Words(tokens []int32) (string, error)
}

// Pages is the local tier.
type Pages interface {
	tier.Tier

	// Vectors returns the vectors that Search.Put has kept, nil without.
	Vectors(ctx context.Context, page pagefile.Name) ([]byte, error)
}

// Search finds pages about words. All fields but Progress are needed.
type Search struct {
	Embedder Embedder
	Pages    Pages
	Put      func(ctx context.Context, page pagefile.Name, content []byte) error
	Decoder  func(ctx context.Context, fingerprint pagefile.Key) (Decoder, error)

	Texts     int     // to embed, at most; a page is embedded as a whole
	Top       int     // conversations to find, at most
	Threshold float64 // the least score of a hit; 0 asks the background

	Progress func(done, total int) // texts; may be nil
}

// Found is a conversation that has a page about the words.
type Found struct {
	Fingerprint  pagefile.Key
	Conversation pagefile.Key // key of its last page
	Page         pagefile.Key // with the highest score
	First, Last  int          // positions of that page's best part
	Stored       int          // tokens of the conversation that the local tier has without a gap before its end
	Tokens       int          // of the conversation
	Score        float64
	Text         string // of the best part; "" if it is not known
}

// Skipped are pages of a model whose text is not known.
type Skipped struct {
	Fingerprint pagefile.Key
	Why         string
	Pages       int
}

// Result is the result of a search.
type Result struct {
	Found     []Found
	Threshold float64
	Best      float64 // the highest score

	Pages    int // of the local tier, tails included
	Indexed  int // pages with vectors
	Vectors  int
	Embedded int // texts of pages that this search has embedded
	Hits     int // pages that score Threshold or more
	Beyond   int // pages that were not looked at, because there are too many
	Full     bool
	Skipped  []Skipped
}

// Run embeds the words and texts of pages without vectors, those used last first, and ranks the pages. If ctx
// ends, the vectors made before stay. If a page's text cannot be embedded, Run returns a result of the others
// together with the error.
func (s *Search) Run(ctx context.Context, words string) (*Result, error) {
	out := &Result{Best: -1}
	model, err := s.Embedder.Open(ctx)
	if err != nil {
		return nil, err
	}
	embedded, err := s.Embedder.Embed(ctx, append([]string{words}, Background...))
	if errors.Is(err, ErrTooLong) {
		return nil, fmt.Errorf("%w; search for fewer words", err)
	}
	if err != nil {
		return nil, err
	}
	x := &index{Search: s, model: model, query: embedded[0], decoders: make(map[pagefile.Key]decoder), out: out}
	if out.Threshold = s.Threshold; out.Threshold == 0 {
		var scores []float64
		for _, v := range embedded[1:] {
			scores = append(scores, quantize(0, v).score(x.query))
		}
		out.Threshold = Floor(scores)
	}
	pages, err := x.loadAll(ctx)
	if err != nil {
		return nil, err
	}
	err = x.updateAll(ctx, pages)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	x.rank(ctx, pages)
	return out, err
}

// loadAll returns the pages whose places are known, with the scores of those that have vectors.
func (x *index) loadAll(ctx context.Context) (pages []*page, err error) {
	all, beyond, err := list(ctx, x.Pages)
	if err != nil {
		return nil, err
	}
	x.out.Pages, x.out.Beyond = len(all), beyond
	for _, p := range all {
		ok, err := x.load(ctx, p)
		if err != nil {
			return nil, err
		}
		if ok {
			pages = append(pages, p)
		}
	}
	return pages, nil
}

// updateAll gives vectors to pages without, until there are enough texts or no room.
func (x *index) updateAll(ctx context.Context, pages []*page) error {
	pages = slices.DeleteFunc(slices.Clone(pages), func(p *page) bool { return p.rated })
	total := 0
	for _, p := range pages {
		total += (p.Tokens + partTokens - 1) / partTokens
	}
	total = min(total, x.Texts)
	for _, p := range pages {
		if x.out.Embedded >= x.Texts {
			break
		}
		if x.Progress != nil {
			x.Progress(x.out.Embedded, total)
		}
		err := x.update(ctx, p)
		if errors.Is(err, tier.ErrNoSpace) {
			x.out.Full = true
			break
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rank finds the conversations of the pages that score highest.
func (x *index) rank(ctx context.Context, pages []*page) {
	in := converse(pages)
	rated := slices.DeleteFunc(slices.Clone(pages), func(p *page) bool { return !p.rated })
	slices.SortStableFunc(rated, func(a, b *page) int { return cmp.Compare(b.score, a.score) })
	if len(rated) > 0 {
		x.out.Best = rated[0].score
	}
	seen := make(map[pagefile.Key]bool)
	for _, p := range rated {
		if p.score < x.out.Threshold {
			break
		}
		x.out.Hits++
		last := in.last[p.Key]
		if seen[last.Key] || len(x.out.Found) >= x.Top {
			continue
		}
		seen[last.Key] = true
		x.out.Found = append(x.out.Found, Found{
			Fingerprint: p.name.Fingerprint, Conversation: last.Key, Page: p.Key,
			First: p.Start + p.at, Last: p.Start + min(p.at+partTokens, p.Tokens) - 1,
			Stored: in.stored(last), Tokens: last.end(), Score: p.score, Text: x.excerpt(ctx, p),
		})
	}
}
