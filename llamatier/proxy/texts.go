package proxy

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/llamatier"
)

// texts knows the tokens of the beginnings of some texts, so that llama-server makes tokens of the rest of a
// text alone: of 4,096 tokens it makes 110 in a millisecond. A beginning ends before a control token, which
// parts a text before anything else does: the tokens before it are the same whatever comes behind.
//
// What is known may be wrong, as may all tokens that are found out before llama-server answers: see forget and
// Handler.Mistaken.
type texts struct {
	engine  *llamatier.Engine
	log     *slog.Logger
	control func(token int32) bool // whether it is a control token; nil if nobody knows

	coming <-chan struct{} // closed when the stored conversation is known, or comes too late; nil if none is coming

	mu       sync.Mutex
	known    []beginning // the one that was used last is the last
	pieces   map[int32]string
	mistakes int
}

// beginning is what a text begins with.
type beginning struct {
	text   string // up to the end of the control token
	end    int    // where that token begins, in bytes
	tokens []int32
}

// size is the number of bytes that it takes.
func (b beginning) size() int { return len(b.text) + 4*len(b.tokens) }

const (
	textLeast = 4 << 10 // bytes of a text for which it is worth looking
	textsMax  = 16
	// mistakesMax is the number of mistakes after which no text is known any more.
	mistakesMax = 8
	textsSize   = 32 << 20 // bytes of all texts and tokens
	// comingTime bounds the wait for the stored conversation.
	comingTime = 20 * time.Millisecond
)

// tokenize returns the tokens of the text with which a prompt begins.
func (x *texts) tokenize(ctx context.Context, text string) ([]int32, error) {
	if x.control == nil || len(text) < textLeast {
		return x.engine.Tokenize(ctx, text, true)
	}
	if x.coming != nil {
		timer := time.NewTimer(comingTime)
		defer timer.Stop()
		select {
		case <-x.coming:
		case <-timer.C:
		}
	}
	b := x.longest(text)
	rest, err := x.engine.Tokenize(ctx, text[b.end:], b.end == 0)
	if err != nil {
		return nil, err
	}
	if b.end > 0 {
		x.log.Debug("kv tier: the beginning of a text is known", "tokens", len(b.tokens), "rest", len(rest))
	}
	tokens := slices.Concat(b.tokens, rest)
	if n := llamatier.LastControl(tokens, len(tokens), x.control); n > 0 {
		// A token that llama-server adds has no piece in the text.
		if piece, err := x.piece(ctx, tokens[n]); err == nil && strings.Count(text, piece) == count(tokens, tokens[n]) {
			x.add(text, strings.LastIndex(text, piece), piece, tokens[:n])
		}
	}
	return tokens, nil
}

// count counts a token among some.
func count(tokens []int32, token int32) (n int) {
	for _, t := range tokens {
		if t == token {
			n++
		}
	}
	return n
}

// learn learns the tokens of a stored conversation, whose prompt may have no text for its first token.
func (x *texts) learn(ctx context.Context, tokens []int32) error {
	n := llamatier.LastControl(tokens, len(tokens), x.control)
	if n == 0 {
		return nil
	}
	piece, err := x.piece(ctx, tokens[n])
	if err != nil {
		return err
	}
	text, err := x.engine.Detokenize(ctx, tokens[:n])
	if err != nil {
		return err
	}
	x.add(text+piece, len(text), piece, tokens[:n])
	if !x.control(tokens[0]) {
		return nil
	}
	first, err := x.piece(ctx, tokens[0])
	if rest, ok := strings.CutPrefix(text, first); ok && err == nil {
		x.add(rest+piece, len(rest), piece, tokens[:n])
	}
	return err
}

// piece returns the text of a control token.
func (x *texts) piece(ctx context.Context, token int32) (string, error) {
	x.mu.Lock()
	piece, known := x.pieces[token]
	x.mu.Unlock()
	if known {
		return piece, nil
	}
	piece, err := x.engine.Detokenize(ctx, []int32{token})
	if err == nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.pieces[token] = piece
	}
	return piece, err
}

// add adds the beginning of a text that ends before a control token, which the text has at a place, in the
// place of shorter ones of the same text.
func (x *texts) add(text string, end int, piece string, tokens []int32) {
	if piece == "" || end < textLeast {
		return
	}
	b := beginning{text[:end+len(piece)], end, tokens}
	if b.size() > textsSize {
		return
	}
	b.text, b.tokens = strings.Clone(b.text), slices.Clone(tokens) // without the memory of all that is behind
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mistakes >= mistakesMax {
		return
	}
	x.known = slices.DeleteFunc(x.known, func(other beginning) bool { return strings.HasPrefix(b.text, other.text) })
	x.known = append(x.known, b)
	size := 0
	for _, b := range x.known {
		size += b.size()
	}
	for len(x.known) > textsMax || size > textsSize {
		size -= x.known[0].size()
		x.known = slices.Delete(x.known, 0, 1)
	}
}

// longest returns the longest beginning of a text that is known; the zero value if none is.
func (x *texts) longest(text string) beginning {
	x.mu.Lock()
	defer x.mu.Unlock()
	best := -1
	for i, b := range x.known {
		if strings.HasPrefix(text, b.text) && (best < 0 || b.end > x.known[best].end) {
			best = i
		}
	}
	if best < 0 {
		return beginning{}
	}
	b := x.known[best]
	x.known = append(slices.Delete(x.known, best, best+1), b)
	return b
}

// drop forgets all beginnings. A client that went away, or a chat that we make otherwise than llama-server, may
// be the reason, so it is not counted as a mistake.
func (x *texts) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known = nil
}

// forget forgets all beginnings: llama-server has made another number of tokens of a prompt. After some
// mistakes nothing is known any more.
func (x *texts) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known = nil
	x.mistakes++
}
