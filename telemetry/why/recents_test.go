package why

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
)

const testPage = 64

// tokens returns n random tokens of a seed.
func tokens(seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	t := make([]int32, n)
	for i := range t {
		t[i] = rng.Int32N(1 << 17)
	}
	return t
}

func join(parts ...[]int32) Text { return Text{Tokens: slices.Concat(parts...)} }

// ask adds a prompt, compares it and ends its request.
func ask(r *Recents, text Text, private bool, held int) Similar {
	id := r.Add(text, private)
	s := r.Compare(id, text, private, held, testPage)
	r.Done(id, text, private, Fate{})
	return s
}

func TestFirstTokenThatDiffers(t *testing.T) {
	r := NewRecents()
	head, rest := tokens(1, 100), tokens(2, 200)
	s := ask(r, join(head, rest), false, 0)
	require.Zero(t, s.Prompts)
	s = ask(r, join(head, []int32{7}, rest[1:]), false, 100)
	require.Equal(t, 100, s.Prefix)
	require.True(t, s.Back)
	require.True(t, s.Alike)
	require.Equal(t, 92, s.Words.Begin)
	require.Equal(t, rest[0], s.Words.Was[8])
	require.EqualValues(t, 7, s.Words.Is[8])
	require.Len(t, s.Words.Is, telemetry.WordsMax)
	s = ask(r, join(head, rest, tokens(3, 50)), false, 300)
	require.Equal(t, 300, s.Prefix)
	require.True(t, s.Whole, "the chat goes on")
	require.False(t, s.Seen)
	s = ask(r, join(head, rest, tokens(4, 50)), false, 20)
	require.True(t, s.Seen)
	require.False(t, s.Back)
	s = ask(r, join(tokens(9, 300)), false, 0)
	require.Zero(t, s.Prefix)
	require.False(t, s.Alike)
}

// Text that moved within a prompt, as when a client drops its oldest messages, was changed and is
// not new.
func TestTextThatMoved(t *testing.T) {
	r := NewRecents()
	head, old, rest := tokens(1, 40), tokens(2, 500), tokens(3, 400)
	ask(r, join(head, old, rest), false, 0)
	s := ask(r, join(head, rest, tokens(4, 30)), false, 40)
	require.Equal(t, 40, s.Prefix)
	require.True(t, s.Back)
}

// The answer belongs to the text: a chat that goes on after it is new from there.
func TestAnswersBelongToTheText(t *testing.T) {
	r := NewRecents()
	prompt, answer := tokens(1, 100), tokens(2, 60)
	id := r.Add(join(prompt), false)
	r.Done(id, join(prompt, answer), false, Fate{})
	s := ask(r, join(prompt, answer, tokens(3, 9)), false, 160)
	require.Equal(t, 160, s.Prefix)
	require.True(t, s.Whole)
}

// A request that ended early has computed only a part of its text.
func TestRequestsThatEndEarly(t *testing.T) {
	r := NewRecents()
	text := join(tokens(1, 300))
	id := r.Add(text, false)
	again := r.Add(text, false)
	require.True(t, r.Compare(again, text, false, 0, testPage).Underway)
	r.Done(id, Text{Tokens: text.Tokens[:128]}, false, Fate{Unstored: 64, Why: FateShift})
	s := r.Compare(again, text, false, 100, testPage)
	require.True(t, s.Seen)
	require.False(t, s.Underway)
	require.Equal(t, FateShift, s.Fate.Why)
	require.Equal(t, FateStored, r.Compare(again, text, false, 32, testPage).Fate.Why, "stored up to 64")
	require.False(t, r.Compare(again, text, false, 128, testPage).Seen)
}

func TestImages(t *testing.T) {
	r := NewRecents()
	text := func(image byte) Text {
		return Text{Tokens: make([]int32, 200), Media: []pagefile.Media{{Offset: 50, Hash: [32]byte{image}}}}
	}
	ask(r, text(1), false, 0)
	s := ask(r, text(2), false, 48)
	require.Equal(t, 50, s.Prefix)
	require.True(t, s.Image)
	require.Nil(t, s.Words)
	require.Empty(t, r.Busters())
	require.True(t, ask(r, text(1), false, 0).Whole)
}

// Of private requests no token is kept, and a prompt that begins like one is told by hashes.
func TestPrivateTextIsNotKept(t *testing.T) {
	r := NewRecents()
	head := tokens(1, 200)
	secret := make([]int32, 500)
	for i := range secret {
		secret[i] = 1<<20 + int32(i)
	}
	ask(r, join(head, secret), true, 0)
	s := ask(r, join(head, secret[:300], tokens(5, 90)), false, 200)
	require.Equal(t, 496, s.Private, "the last multiple of 8 up to 500")
	require.Zero(t, s.Prompts)
	require.Zero(t, r.Compare(99, join(head, secret), false, 699, testPage).Private)
	require.Zero(t, r.Compare(99, join(head, tokens(6, 90)), false, 200, testPage).Private)
	require.Equal(t, 8, r.Compare(99, join(head[:8], tokens(6, 90)), false, 0, testPage).Private, "short ones too")

	r = NewRecents()
	for i := range 5 {
		private := join(head, []int32{int32(i)}, secret)
		id := r.Add(private, true)
		require.Nil(t, r.Compare(id, private, true, 0, testPage).Words)
		r.Done(id, join(private.Tokens, secret), true, Fate{})
		ask(r, join(head, []int32{int32(i)}, tokens(2, 100)), false, 0)
	}
	require.NotEmpty(t, r.Busters(), "of the public prompts")
	requireNone(t, reflect.ValueOf(r), 1<<20)
}

// requireNone fails if any number from least on is reachable from a value. Hashes are left out.
func requireNone(t *testing.T, v reflect.Value, least int64) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			requireNone(t, v.Elem(), least)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			requireNone(t, v.Field(i), least)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			requireNone(t, v.Index(i), least)
		}
	case reflect.Int32:
		require.Less(t, v.Int(), least)
	}
}

// Other processes, and so other namespaces, have other hashes.
func TestHashesAreOfOneProcess(t *testing.T) {
	text := join(tokens(1, 64))
	a, b := NewRecents(), NewRecents()
	a.Done(0, text, true, Fate{})
	b.Done(0, text, true, Fate{})
	for hash := range a.private.hashes {
		require.NotContains(t, b.private.hashes, hash)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	r := NewRecents()
	for i := range 3 * PromptsMax {
		ask(r, join(tokens(uint64(i), 50)), i%3 == 0, 0)
		require.LessOrEqual(t, len(r.latest), PromptsMax)
	}
	for i := range 20 {
		ask(r, Text{Tokens: make([]int32, TokensMax/7+i)}, false, 0)
		require.LessOrEqual(t, r.tokens, TokensMax)
	}
	require.NotEmpty(t, r.latest)
	id := r.Add(Text{Tokens: make([]int32, TokensMax+1)}, false) // not kept
	require.LessOrEqual(t, r.tokens, TokensMax)
	r.Done(id, Text{Tokens: make([]int32, TokensMax+2)}, false, Fate{})
	require.LessOrEqual(t, r.tokens, TokensMax)
	id = r.Add(Text{Tokens: make([]int32, 10)}, false)
	r.Done(id, Text{Tokens: make([]int32, TokensMax)}, false, Fate{}) // a long answer
	require.Equal(t, TokensMax, r.tokens)
	sum := 0
	for _, e := range r.latest {
		sum += e.text.size()
	}
	require.Equal(t, sum, r.tokens)
	for i := range 4 {
		r.private.add(join(tokens(uint64(1000+i), TokensMax/2)))
		require.LessOrEqual(t, len(r.private.hashes), privateMax)
		require.LessOrEqual(t, r.Bytes(), int64(BytesMax))
		require.Equal(t, len(r.private.ring), len(r.private.hashes))
	}
}

func TestNoRecents(t *testing.T) {
	var r *Recents
	require.Zero(t, ask(r, join(tokens(1, 9)), false, 0))
	require.Nil(t, r.Busters())
	require.Zero(t, r.Bytes())
}

// Random prompts over few tokens, against the plain definition.
func TestRandomPromptsAgainstAModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		r := NewRecents()
		type past struct {
			text    Text
			private bool
		}
		var model []past
		for range 30 {
			text := randomText(rng)
			if len(model) > 0 && rng.IntN(2) == 0 { // goes on like an earlier one
				like := model[rng.IntN(len(model))].text
				n := rng.IntN(len(like.Tokens) + 1)
				text.Tokens = slices.Concat(like.Tokens[:n], text.Tokens)
				text.Media = slices.Concat(pagefile.MediaWithin(like.Media, 0, n), pagefile.MediaWithin(text.Media, -n, len(text.Tokens)))
			}
			private, held := rng.IntN(4) == 0, rng.IntN(len(text.Tokens)+1)
			s := ask(r, text, private, held)
			prefix, prompts, seen, covered := 0, 0, false, 0
			for _, p := range model {
				n := slowPrefix(p.text, text)
				switch {
				case !p.private:
					prompts++
					prefix, seen = max(prefix, n), seen || n > held
				case n > held:
					for m := held + 1; m <= n; m++ {
						if hashed(m) {
							covered = max(covered, m)
						}
					}
				}
			}
			require.Equal(t, []any{prefix, prompts, seen, covered}, []any{s.Prefix, s.Prompts, s.Seen, s.Private}, fmt.Sprint(seed))
			model = append(model, past{text, private})
		}
	}
}

func randomText(rng *rand.Rand) (text Text) {
	for i := range 1 + rng.IntN(60) {
		text.Tokens = append(text.Tokens, rng.Int32N(2))
		if rng.IntN(20) == 0 {
			text.Media = append(text.Media, pagefile.Media{Offset: uint32(i), Hash: [32]byte{byte(rng.IntN(2))}})
		}
	}
	return text
}

// slowPrefix counts the leading positions at which two texts have the same token and image.
func slowPrefix(a, b Text) int {
	for i := range min(len(a.Tokens), len(b.Tokens)) {
		am, aok := a.mediaAt(i)
		bm, bok := b.mediaAt(i)
		if a.Tokens[i] != b.Tokens[i] || aok != bok || am != bm {
			return i
		}
	}
	return min(len(a.Tokens), len(b.Tokens))
}

func TestRequestsAtOnce(t *testing.T) {
	r := NewRecents()
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := range 50 {
				ask(r, join(tokens(uint64(n%5), 80), tokens(uint64(i), 40)), n%7 == 0, 10)
				_ = r.Busters()
			}
		}()
	}
	all.Wait()
	require.LessOrEqual(t, len(r.latest), PromptsMax)
}
