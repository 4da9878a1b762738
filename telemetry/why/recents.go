package why

import (
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Bounds of Recents.
const (
	// PromptsMax and TokensMax bound the prompts that are kept, in prompts and in tokens: 8 MiB.
	PromptsMax = 64
	TokensMax  = 2 << 20

	// mediaTokens is the number of tokens as which an image or a sound counts: it takes as much memory.
	mediaTokens = 9
)

// Text is the tokens of a prompt, and the images and sounds among them.
type Text struct {
	Tokens []int32
	Media  []pagefile.Media // in order of their offsets
	Of     [32]byte         // whose text it is: texts of two tenants are not compared
}

// shared counts the leading tokens that two texts have in common.
func (t Text) shared(o Text) int { return pagefile.CommonPrefix(t.Tokens, t.Media, o.Tokens, o.Media) }

// shown reports whether there are images or sounds: a tenant's text has its mark as the first medium.
func (t Text) shown() bool { return len(t.Media) > 1 || len(t.Media) > 0 && t.Of == [32]byte{} }

// size is the number of tokens as which a text counts.
func (t Text) size() int { return len(t.Tokens) + mediaTokens*len(t.Media) }

// mediaAt returns the digest of an image or a sound at a position.
func (t Text) mediaAt(position int) (digest [32]byte, ok bool) {
	for _, m := range t.Media {
		if int(m.Offset) == position {
			return m.Hash, true
		}
	}
	return digest, false
}

// Fate tells where the rows of a computed text went.
type Fate struct {
	// Unstored is the position from which rows were not stored, and Why the reason. FateStored
	// without a position means that all of them were, or wait to be.
	Unstored int
	Why      FateWhy
	// Detail tells more.
	Detail string
}

// FateWhy is why computed rows were not stored.
type FateWhy uint8

// Reasons.
const (
	FateStored FateWhy = iota
	FateShift          // the slot was broken by a shift
	FateImage          // behind an image without identity
	FateLossy          // behind lossy pages
)

// recent is one prompt. Its text is replaced and never changed, so that a comparison needs no lock.
type recent struct {
	id      uint64
	private bool // then text is empty
	text    Text
	done    bool // the request has ended
	reach   int  // tokens that were computed, once done
	fate    Fate
}

// Recents are the latest prompts of a process. A nil Recents keeps nothing. All methods may be
// called from several goroutines.
type Recents struct {
	mu      sync.Mutex
	latest  []recent // oldest first
	tokens  int      // of latest; an image counts as some
	id      uint64
	private private
	busters busters
}

// NewRecents returns Recents without a prompt.
func NewRecents() *Recents { return &Recents{private: newPrivate()} }

// Add keeps a prompt and returns its number. The text must not change afterwards. Of a private
// prompt only hashes are kept, by [Recents.Done].
func (r *Recents) Add(text Text, private bool) uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id++
	e := recent{id: r.id, private: private}
	if !private && text.size() <= TokensMax {
		e.text = text
	}
	r.latest = append(r.latest, e)
	r.tokens += e.text.size()
	r.boundLocked()
	return e.id
}

// boundLocked drops the oldest prompts until the rest is within bounds.
func (r *Recents) boundLocked() {
	drop := 0
	for len(r.latest)-drop > PromptsMax || r.tokens > TokensMax {
		r.tokens -= r.latest[drop].text.size()
		drop++
	}
	r.latest = slices.Delete(r.latest, 0, drop)
}

// Done notes the end of a request: text is all that was computed, the answer included, and begins with
// the prompt unless the prompt was not computed to its end, or was shifted. Of a private request's
// text hashes are kept.
func (r *Recents) Done(id uint64, text Text, private bool, fate Fate) {
	if r == nil {
		return
	}
	if private {
		r.private.add(text)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.latest, func(e recent) bool { return e.id == id })
	if i < 0 {
		return
	}
	e := &r.latest[i]
	e.done, e.fate = true, fate
	if e.private {
		return
	}
	if e.reach = e.text.shared(text); e.reach == len(e.text.Tokens) && text.size() <= TokensMax {
		r.tokens += text.size() - e.text.size()
		e.text, e.reach = text, len(text.Tokens)
	}
	r.boundLocked()
}

// before returns the prompts of a tenant that arrived before another, latest first.
func (r *Recents) before(id uint64, of [32]byte) []recent {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make([]recent, 0, len(r.latest))
	for _, e := range slices.Backward(r.latest) {
		if e.id < id && !e.private && e.text.Of == of {
			found = append(found, e)
		}
	}
	return found
}

// BytesMax bounds Bytes.
const BytesMax = 4*TokensMax + hashBytes*privateMax

// Bytes estimates the memory of the prompts and of the hashes.
func (r *Recents) Bytes() int64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return 4*int64(r.tokens) + hashBytes*int64(r.private.len())
}
