package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// Control tokens of a speller, whose other tokens are the bytes of a text, or two of them.
const (
	begins = 1000 + iota // <s>, before every prompt
	says                 // <|im_start|>
	ends                 // <|im_end|>
	silent               // no text
)

var controls = map[int32]string{begins: "<s>", says: "<|im_start|>", ends: "<|im_end|>"}

func isControl(token int32) bool { return token >= begins }

// spell makes tokens of a text as llama-server does: control tokens part it, and two equal bytes are one
// token.
func spell(text string, first bool) (tokens []int32) {
	if first {
		tokens = append(tokens, begins)
	}
	for text != "" {
		found := false
		for token, piece := range controls {
			if strings.HasPrefix(text, piece) {
				tokens, text, found = append(tokens, token), text[len(piece):], true
			}
		}
		switch {
		case found:
		case len(text) > 1 && text[0] == text[1]:
			tokens, text = append(tokens, 500+int32(text[0])), text[2:]
		default:
			tokens, text = append(tokens, int32(text[0])), text[1:]
		}
	}
	return tokens
}

func read(tokens []int32) string {
	var text strings.Builder
	for _, token := range tokens {
		switch {
		case isControl(token):
			text.WriteString(controls[token])
		case token >= 500:
			text.WriteString(strings.Repeat(string(rune(token-500)), 2))
		default:
			text.WriteByte(byte(token))
		}
	}
	return text.String()
}

// speller is an engine that makes tokens of texts.
type speller struct {
	mu    sync.Mutex
	asked int // bytes of texts
	fails bool
	last  bool // it adds a token at the end
}

func (s *speller) answer(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Content string
		First   bool `json:"add_special"`
		Tokens  []int32
	}
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, &in)
	s.mu.Lock()
	s.asked += len(in.Content)
	fails := s.fails
	tokens := spell(in.Content, in.First)
	if s.last {
		tokens = append(tokens, ends)
	}
	s.mu.Unlock()
	switch {
	case fails:
		http.Error(w, "no", http.StatusInternalServerError)
	case r.URL.Path == "/tokenize":
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
	case r.URL.Path == "/detokenize":
		_ = json.NewEncoder(w).Encode(map[string]any{"content": read(in.Tokens)})
	}
}

// took returns the number of bytes of which tokens were made since it was called last.
func (s *speller) took() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked
	s.asked = 0
	return n
}

// recalling returns a Handler that knows texts, and a stored conversation.
func recalling(t *testing.T, stored []int32, err error) (*Handler, *speller) {
	s := new(speller)
	h := loaded(listen(t, s.answer), Ours{}, slog.New(slog.DiscardHandler))
	began := time.Now()
	h.Recall(isControl, func(context.Context) ([]int32, error) { return stored, err })
	<-h.texts.coming
	if len(stored) > 0 && time.Since(began) >= recallTime { // a busy machine
		require.NoError(t, h.texts.learn(t.Context(), stored))
	}
	return h, s
}

// requireSpelled requires that a Handler makes a text's tokens as llama-server does, and returns them.
func requireSpelled(t *testing.T, h *Handler, text string) []int32 {
	t.Helper()
	tokens, err := h.texts.tokenize(t.Context(), text, llamatier.Tenant{})
	require.NoError(t, err)
	require.Equal(t, spell(text, true), tokens)
	return tokens
}

// messages is a chat of some messages, whose text has runs that tokens join.
func messages(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var text strings.Builder
	for range n {
		text.WriteString("<|im_start|>user\n")
		for range 500 + r.IntN(2000) {
			text.WriteByte("ab <|"[r.IntN(5)])
		}
		text.WriteString("<|im_end|>\n")
	}
	return text.String() + "<|im_start|>assistant\n"
}

// TestALongerText: of a text that goes on, tokens are made of the rest alone, and they are the same.
func TestALongerText(t *testing.T) {
	h, s := recalling(t, nil, nil)
	for seed := range uint64(20) {
		text := messages(12, seed)
		for _, end := range []string{"a<|im_end|>", "aa<|im_end|>", "a<|im_start|>"} { // what stood before another token
			requireSpelled(t, h, text+end)
		}
		for at := 0; at < len(text); at += 1 + len(text)/7 { // cut anywhere, also within a control token
			for _, part := range []string{text[:at], text[:at] + "aaa", text} {
				requireSpelled(t, h, part)
			}
		}
		s.took()
		requireSpelled(t, h, text+"aaaa")
		require.Less(t, s.took(), 100)
	}
	require.LessOrEqual(t, len(h.texts.known), textsMax)
	for n := range mistakesMax {
		h.texts.forget(1)
		requireSpelled(t, h, messages(12, 0))
		require.Greater(t, s.took(), textLeast)
		require.Equal(t, n == mistakesMax-1, len(h.texts.known) == 0)
	}
}

// TestAnEqualText: the tokens of a text that was there before are known, also of one without a control token.
// Those of a longer one are not: a token may join bytes of both.
func TestAnEqualText(t *testing.T) {
	h, s := recalling(t, nil, nil)
	raw := strings.Repeat("ab", textLeast) + "a"
	for _, text := range []string{raw, messages(12, 0), raw + "a", raw + "a<|im_end|>", messages(12, 0), raw + "a"} {
		for n := range 2 {
			s.took()
			tokens := requireSpelled(t, h, text)
			if n > 0 {
				require.Zero(t, s.took())
			}
			clear(tokens) // which are the caller's
		}
	}
}

// TestATokenBehindTheText: a token that the engine adds at the end parts no text, even if the text has its
// piece elsewhere.
func TestATokenBehindTheText(t *testing.T) {
	h, s := recalling(t, nil, nil)
	s.last = true
	for _, text := range []string{messages(12, 0), messages(12, 0) + "more<|im_end|>"} {
		tokens, err := h.texts.tokenize(t.Context(), text, llamatier.Tenant{})
		require.NoError(t, err)
		require.Equal(t, append(spell(text, true), ends), tokens)
	}
}

// TestAStoredText: the text of a stored conversation is known, also where the template's text has none for
// the first token.
func TestAStoredText(t *testing.T) {
	text := messages(12, 1)
	for _, front := range []string{"", "<s>"} {
		stored := spell(front+text+"an answer", front == "")
		h, s := recalling(t, stored, nil)
		next := front + text + "an answer<|im_end|>\n<|im_start|>user\nmore"
		tokens, err := h.texts.tokenize(t.Context(), next, llamatier.Tenant{})
		require.NoError(t, err)
		require.Less(t, s.took(), 100)
		require.Equal(t, read(spell(next, front == "")), read(tokens))
		if front == "" {
			require.Equal(t, spell(next, true), tokens)
		}
	}
}

// TestAStoredTextThatEndsInAPrompt: its last control token is not known, and one without text parts nothing.
func TestAStoredTextThatEndsInAPrompt(t *testing.T) {
	raw := strings.Repeat("ab", textLeast) + "a"
	for stored, text := range map[int32]string{ends: raw + "<|im_end|>", silent: raw + "a"} {
		h, _ := recalling(t, append(spell(raw, true), stored, 'b'), nil)
		for range 2 {
			requireSpelled(t, h, text)
		}
	}
}

// TestAnAnswerInOtherTokens than llama-server makes of its text, as many, is known until a slot was saved.
func TestAnAnswerInOtherTokens(t *testing.T) {
	text := messages(12, 1) + "aaa<|im_end|>"
	stored := spell(text, true)
	n := len(stored)
	stored[n-3], stored[n-2] = stored[n-2], stored[n-3] // aa a, and not a aa
	h, _ := recalling(t, stored, nil)
	right := func() bool {
		text += "more<|im_end|>"
		tokens, err := h.texts.tokenize(t.Context(), text, llamatier.Tenant{})
		require.NoError(t, err)
		require.Len(t, tokens, len(spell(text, true)))
		return slices.Equal(spell(text, true), tokens)
	}
	require.False(t, right())
	require.False(t, right(), "nobody has noticed")
	h.Mistaken()
	require.True(t, right())
	require.True(t, right())
}

// TestTextsWithoutHelp: without a stored conversation, and of an engine that fails, tokens are made of the
// whole text, or the error is the engine's.
func TestTextsWithoutHelp(t *testing.T) {
	text := messages(12, 1)
	for _, stored := range [][]int32{nil, {}, {begins}, {'a', 'b'}, spell("short<|im_end|>", true)} {
		h, _ := recalling(t, stored, nil)
		requireSpelled(t, h, text)
	}
	h, s := recalling(t, nil, errors.New("the disk fails"))
	s.fails = true
	_, err := h.texts.tokenize(t.Context(), text, llamatier.Tenant{})
	require.Error(t, err)
	s.fails = false
	requireSpelled(t, h, text)
}

// TestTextsAreBounded in number and in size.
func TestTextsAreBounded(t *testing.T) {
	h, _ := recalling(t, nil, nil)
	for seed := range uint64(2 * textsMax) {
		requireSpelled(t, h, messages(4, seed))
	}
	require.Len(t, h.texts.known, textsMax)
	bytes, _, _ := h.texts.longest(messages(4, 0), llamatier.Tenant{})
	require.Zero(t, bytes, "the oldest goes first")
	chat := messages(4, textsMax) // the oldest that is left
	bytes, _, _ = h.texts.longest(chat, llamatier.Tenant{})
	require.Equal(t, len(chat), bytes)
	for i := range textsMax - 1 {
		requireSpelled(t, h, messages(4, uint64(3*textsMax+i)))
	}
	for i := range textsMax {
		requireSpelled(t, h, strings.Repeat(string(rune('c'+i)), textLeast))
	}
	bytes, _, _ = h.texts.longest(chat, llamatier.Tenant{})
	require.Equal(t, len(chat), bytes, "it was used, and no raw text takes its place")
	h.texts.add(known{text: strings.Repeat("x", textsSize-10)}, 0)
	require.Len(t, h.texts.known, 1)
}

// TestTextsTakeThePlaceOfOthers that they serve as well.
func TestTextsTakeThePlaceOfOthers(t *testing.T) {
	raw := strings.Repeat("ab", textLeast)
	for _, c := range []struct {
		texts []string
		left  int
	}{
		{[]string{raw, raw + "a", raw + "ab"}, 1},
		{[]string{raw + "<|im_end|>think", raw + "<|im_end|>answer<|im_end|>"}, 1},
		{[]string{raw, raw + "<|im_end|>", raw + "<|im_end|>a"}, 1},
		{[]string{"<|im_start|>" + raw + "a", "<|im_start|>" + raw + "b"}, 2},
	} {
		h, s := recalling(t, nil, nil)
		for _, text := range c.texts {
			requireSpelled(t, h, text)
		}
		require.Len(t, h.texts.known, c.left)
		s.took()
		for _, text := range c.texts[len(c.texts)-c.left:] {
			requireSpelled(t, h, text)
			require.Zero(t, s.took())
		}
	}
}

// TestTokensOfBeforeAMistake are not kept by a request that was given them before.
func TestTokensOfBeforeAMistake(t *testing.T) {
	raw := strings.Repeat("ab", textLeast)
	for _, forget := range []func(*Handler){(*Handler).Mistaken, func(h *Handler) { h.texts.forget(1) }} {
		h, _ := recalling(t, nil, nil)
		control, once := h.texts.control, sync.OnceFunc(func() { forget(h) })
		h.texts.control = func(token int32) bool { once(); return control(token) } // before it is added
		requireSpelled(t, h, raw)
		require.Empty(t, h.texts.known)
	}
}

// heldBytes are the bytes of memory that a function leaves in use.
func heldBytes(f func()) int64 {
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	f()
	return inUse() - before
}

// TestTextsTakeNoOtherMemory: no other memory of its request is kept with a text, and none of one that is not
// known any more.
func TestTextsTakeNoOtherMemory(t *testing.T) {
	var x texts
	require.Less(t, heldBytes(func() {
		for i := range textsMax {
			body := strings.Repeat(string(rune('a'+i)), 4<<20)
			x.add(known{text: body[:textLeast], tokens: make([]int32, 1<<20)[:10]}, 0)
		}
	}), int64(1<<20))
	const large = textsSize - textLeast
	require.Less(t, heldBytes(func() {
		for i := range 4 {
			x.add(known{text: strings.Repeat(string(rune('A'+i)), large)}, 0)
		}
	}), int64(textsSize+1<<20))
	require.Len(t, x.known, 1)
}

// TestADiskThatHangs while the stored conversation is read holds up requests for a second, and none after that.
func TestADiskThatHangs(t *testing.T) {
	h := loaded(listen(t, new(speller).answer), Ours{}, slog.New(slog.DiscardHandler))
	hangs := make(chan struct{})
	defer close(hangs)
	h.Recall(isControl, func(context.Context) ([]int32, error) { <-hangs; return nil, nil })
	select {
	case <-h.texts.coming:
	case <-time.After(10 * recallTime):
		require.Fail(t, "requests wait")
	}
}

// TestPrivateTextsAreNotKept: kv_store: false.
func TestPrivateTextsAreNotKept(t *testing.T) {
	h, _ := recalling(t, nil, nil)
	in := members{"prompt": encode(messages(12, 1))}
	for _, private := range []bool{true, false} {
		tokens, _, err := h.tokens(t.Context(), nil, in, false, private, llamatier.Tenant{})
		require.NoError(t, err)
		require.Equal(t, spell(messages(12, 1), true), tokens)
		require.Equal(t, private, len(h.texts.known) == 0)
	}
	x := &sees(t).texts
	for _, known := range []int{0, 1, 1} {
		tokens, _ := x.list(t.Context(), []any{messages(12, 1)}, known == 0, llamatier.Tenant{})
		require.Equal(t, "["+messages(12, 1)+"]", string(tokens))
		require.Len(t, x.known, known)
	}
}
