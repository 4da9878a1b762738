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

// texts knows the tokens of some texts and of their beginnings, so that llama-server makes tokens of the rest of
// a text alone: of 4,096 tokens it makes 110 in a millisecond. A beginning ends before a control token, which
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
	known    []known // the one that was used last is the last
	pieces   map[int32]string
	mistakes int
	drops    int // how often all were forgotten: what was found out before is not kept
}

// known is a text, or what one begins with.
type known struct {
	text   string
	tokens []int32
	// start and end are where the last control token begins and ends in the text, in bytes, and n is the number
	// of tokens before it; 0 if the text has none, or it is not known where.
	start, end, n int

	of llamatier.Tenant // others do not know it
}

// size is the number of bytes that it takes.
func (k known) size() int { return len(k.text) + 4*len(k.tokens) }

// covers returns the number of bytes of a text, and of their tokens, that are known.
func (k known) covers(text string) (bytes, tokens int) {
	switch {
	case len(k.tokens) > k.n && text == k.text:
		return len(text), len(k.tokens)
	case k.n > 0 && strings.HasPrefix(text, k.text[:k.end]):
		return k.start, k.n
	}
	return 0, 0
}

const (
	textLeast = 4 << 10 // bytes of a text for which it is worth looking
	textsMax  = 16
	// mistakesMax is the number of mistakes after which no text is known any more.
	mistakesMax = 8
	textsSize   = 32 << 20 // bytes of all texts and tokens
	// comingTime bounds the wait for the stored conversation.
	comingTime = 20 * time.Millisecond
)

// tokenize returns the tokens of the text with which a tenant's prompt begins.
func (x *texts) tokenize(ctx context.Context, text string, of llamatier.Tenant) ([]int32, error) {
	if x.control == nil || len(text) < textLeast {
		return x.engine.Tokenize(ctx, text, true, true)
	}
	if x.coming != nil {
		select {
		case <-x.coming:
		case <-time.After(comingTime):
		}
	}
	bytes, tokens, drops := x.longest(text, of)
	if bytes == len(text) {
		return tokens, nil
	}
	rest, err := x.engine.Tokenize(ctx, text[bytes:], bytes == 0, true)
	if err != nil {
		return nil, err
	}
	if bytes > 0 {
		x.log.Debug("kv tier: the beginning of a text is known", "tokens", len(tokens), "rest", len(rest))
	}
	tokens = append(tokens, rest...)
	k := known{text: text, tokens: tokens, of: of}
	if n := llamatier.LastControl(tokens, len(tokens), x.control); n > 0 {
		// A token that llama-server adds has no piece in the text.
		piece, err := x.piece(ctx, tokens[n])
		same := 0
		for _, token := range tokens {
			if token == tokens[n] {
				same++
			}
		}
		if err == nil && piece != "" && strings.Count(text, piece) == same {
			k.start, k.n = strings.LastIndex(text, piece), n
			k.end = k.start + len(piece)
		}
	}
	x.add(k, drops)
	return tokens, nil
}

// list returns the tokens of a list of texts and tokens, in which nothing stands for a control token. For a
// private one no text is known, nor kept.
func (x *texts) list(ctx context.Context, list []any, private bool, of llamatier.Tenant) ([]int32, error) {
	text := "\xff" + string(encode(list)) // no text of a request begins so
	bytes, tokens, drops := x.longest(text, of)
	if bytes == len(text) && !private {
		return tokens, nil
	}
	tokens, err := x.engine.Tokenize(ctx, list, false, false)
	if err == nil && !private {
		x.add(known{text: text, tokens: tokens, of: of}, drops)
	}
	return tokens, err
}

// learn learns the tokens of a stored conversation, whose prompt may have no text for its first token.
func (x *texts) learn(ctx context.Context, tokens []int32) error {
	_, _, drops := x.longest("", llamatier.Tenant{})
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
	if piece == "" {
		return nil
	}
	x.add(known{text: text + piece, tokens: tokens[:n], start: len(text), end: len(text + piece), n: n}, drops)
	if !x.control(tokens[0]) {
		return nil
	}
	first, err := x.piece(ctx, tokens[0])
	if rest, ok := strings.CutPrefix(text, first); ok && err == nil {
		x.add(known{text: rest + piece, tokens: tokens[:n], start: len(rest), end: len(rest + piece), n: n}, drops)
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

// add adds a text in the place of those that it serves as well, unless all were forgotten since drops. Texts of
// which no beginning is known serve equal ones alone, and are the first to go.
func (x *texts) add(k known, drops int) {
	if len(k.text) < textLeast || k.size() > textsSize {
		return
	}
	k.text, k.tokens = strings.Clone(k.text), slices.Clone(k.tokens) // without the memory of all that is behind
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mistakes >= mistakesMax || x.drops != drops {
		return
	}
	x.known = slices.DeleteFunc(x.known, func(other known) bool {
		if other.of != k.of {
			return false
		}
		if other.n > 0 && len(other.text)-other.end < textLeast {
			return k.n > 0 && strings.HasPrefix(k.text, other.text[:other.end])
		}
		return (k.n > 0 || other.n == 0) && strings.HasPrefix(k.text, other.text)
	})
	x.known = append(x.known, k)
	size := 0
	for _, k := range x.known {
		size += k.size()
	}
	for len(x.known) > textsMax || size > textsSize {
		first := max(0, slices.IndexFunc(x.known[:len(x.known)-1], func(k known) bool { return k.n == 0 }))
		size -= x.known[first].size()
		x.known = slices.Delete(x.known, first, first+1)
	}
}

// longest returns the longest beginning of a text that is known of a tenant, in bytes, its tokens, and how often all
// texts were forgotten.
func (x *texts) longest(text string, of llamatier.Tenant) (bytes int, tokens []int32, drops int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	best := -1
	for i, k := range x.known {
		if b, n := k.covers(text); b > bytes && k.of == of {
			best, bytes, tokens = i, b, k.tokens[:n]
		}
	}
	if best >= 0 {
		k := x.known[best]
		x.known = append(slices.Delete(x.known, best, best+1), k)
	}
	return bytes, slices.Clone(tokens), x.drops
}

// forget forgets all texts, because tokens were not llama-server's. mistakes is 1 if only we can be the reason, and
// 0 if a client that went away may be, or a chat that we make otherwise than llama-server. After mistakesMax
// nothing is known any more.
func (x *texts) forget(mistakes int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known = nil
	x.drops++
	x.mistakes += mistakes
}
