package branch

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var ctx = context.Background()

const pageTokens = 256

// fakeLists are lists in memory that count the lists of look-ups.
type fakeLists struct {
	at      map[pagefile.Key][]tier.Branch
	longer  map[pagefile.Key]bool
	lists   int // since the count was set to 0
	longest int // list ever
	fail    int // lists until one fails, 0 for none
}

func newLists() *fakeLists {
	return &fakeLists{at: make(map[pagefile.Key][]tier.Branch), longer: make(map[pagefile.Key]bool)}
}

func (f *fakeLists) AddBranch(_ context.Context, b tier.Branch, durable bool) error {
	switch {
	case b.Longer && !durable:
		return errors.New("a mark that a power cut removes hides the branches behind it")
	case b.Longer:
		f.longer[b.Prefix] = true
	case !slices.Contains(f.at[b.Prefix], b):
		f.at[b.Prefix] = append(f.at[b.Prefix], b)
	}
	return nil
}

func (f *fakeLists) Branches(_ context.Context, _ pagefile.Key, at []byte) ([]tier.Branch, error) {
	prefix := pagefile.Key(at)
	if f.fail--; f.fail == 0 {
		return nil, errors.New("no list")
	}
	f.lists++
	f.longest = max(f.longest, len(f.at[prefix]))
	branches := slices.Clone(f.at[prefix])
	if f.longer[prefix] {
		branches = append(branches, tier.Branch{Prefix: prefix, Longer: true})
	}
	return branches, nil
}

// child returns the header of a page or tail that begins a sequence.
func child(tokens []int32, media ...pagefile.Media) *pagefile.Header {
	return &pagefile.Header{
		Fingerprint: pagefile.Key{1}, Parent: pagefile.Key{1}, PageTokens: pageTokens,
		Tokens: tokens, Media: media, Key: pagefile.ChainKey(pagefile.Key{1}, tokens, media),
	}
}

func (f *fakeLists) add(t require.TestingT, h *pagefile.Header) []Candidate {
	met, err := Add(ctx, f, h, h.Tail())
	require.NoError(t, err)
	return met
}

func (f *fakeLists) find(t require.TestingT, tokens []int32, media ...pagefile.Media) []Candidate {
	f.lists = 0
	found, err := Find(ctx, f, Prompt{
		Fingerprint: pagefile.Key{1}, Parent: pagefile.Key{1}, Tokens: tokens[:min(len(tokens), pageTokens)], Media: media, PageTokens: pageTokens,
	})
	require.NoError(t, err)
	require.LessOrEqual(t, f.lists, steps)
	require.LessOrEqual(t, f.longest, lastMost+1)
	return found
}

// text returns n tokens that differ from those of other seeds from the first one that is not shared.
func text(shared, n int, seed uint64) []int32 {
	tokens := make([]int32, n)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range tokens {
		tokens[i] = int32(i)
		if i >= shared {
			tokens[i] = 1000 + rng.Int32N(30000)
		}
	}
	return tokens
}

// TestManyChildren: each of thousands of pages behind one parent is found by a prompt that begins
// like it, with any number of shared tokens and with lists that do not grow.
func TestManyChildren(t *testing.T) {
	for _, shared := range []int{0, 7, 100, 200, 240} {
		f := newLists()
		const children = 1000
		for seed := range uint64(children) {
			f.add(t, child(text(shared, pageTokens, seed)))
		}
		for seed := range uint64(children) {
			n := shared + 8 + int(seed)%8
			prompt := slices.Concat(text(shared, n, seed), []int32{-1, -2})
			found := f.find(t, prompt)
			require.NotEmpty(t, found)
			at := slices.IndexFunc(found, func(c Candidate) bool { return c.Key == child(text(shared, pageTokens, seed)).Key })
			require.GreaterOrEqual(t, at, 0, "shared %d, seed %d", shared, seed)
			require.Less(t, at, 16, "a look-up reads 16 headers")
		}
	}
}

// TestShortChats: each of many tails behind one parent is found by its name as the longest with
// which a prompt begins.
func TestShortChats(t *testing.T) {
	f := newLists()
	const chats = 1000
	of := func(i int) *pagefile.Header { return child(text(200, 210+i%30, uint64(i))) }
	for i := range chats {
		f.add(t, of(i))
	}
	for i := range chats {
		found := f.find(t, slices.Concat(of(i).Tokens, []int32{5, 6, 7}))
		require.True(t, slices.ContainsFunc(found, func(c Candidate) bool { return c.Key == of(i).Key && c.Whole() && c.Most == len(of(i).Tokens) }), i)
	}
}

// TestAddMeetsWhatItExtends: Add returns the tails that the new one extends, as whole ones.
func TestAddMeetsWhatItExtends(t *testing.T) {
	f := newLists()
	for seed := range uint64(100) {
		f.add(t, child(text(50, 60, seed)))
	}
	met := f.add(t, child(append(text(50, 60, 77), 1, 2, 3)))
	require.Equal(t, child(text(50, 60, 77)).Key, met[slices.IndexFunc(met, Candidate.Whole)].Key)
	require.Len(t, slices.DeleteFunc(met, func(c Candidate) bool { return !c.Whole() }), 1)
}

// TestTheLastListIsFull: a tail takes the place of the one that it extends, and any other has none.
func TestTheLastListIsFull(t *testing.T) {
	f := newLists()
	of := func(seed int32) *pagefile.Header { return child([]int32{1, 2, seed}) }
	for seed := range int32(lastMost) {
		f.add(t, of(seed))
	}
	f.add(t, of(lastMost))
	require.Len(t, f.at[pagefile.Key{1}], lastMost)
	longer := child(append(of(7).Tokens, 9))
	f.add(t, longer)
	require.True(t, slices.ContainsFunc(f.find(t, longer.Tokens), func(c Candidate) bool { return c.Key == longer.Key && c.Whole() }))
}

// TestAddIsIdempotent: a page that is added again has one branch, wherever it is.
func TestAddIsIdempotent(t *testing.T) {
	f := newLists()
	for range 3 {
		for seed := range uint64(2 * listMost) {
			f.add(t, child(text(20, pageTokens, seed)))
		}
	}
	n := 0
	for _, list := range f.at {
		n += len(list)
	}
	require.Equal(t, 2*listMost, n)
}

// TestAddAfterRemovals: a page whose branch is at a longer prefix keeps it when a shorter one gets room.
func TestAddAfterRemovals(t *testing.T) {
	f := newLists()
	for seed := range uint64(2 * listMost) {
		f.add(t, child(text(20, pageTokens, seed)))
	}
	f.at[pagefile.Key{1}] = nil
	last := child(text(20, pageTokens, 2*listMost-1))
	f.add(t, last)
	require.Empty(t, f.at[pagefile.Key{1}])
	require.True(t, slices.ContainsFunc(f.find(t, last.Tokens), func(c Candidate) bool { return c.Key == last.Key }))
}

// TestMediaDivide: pages with other images are no candidates behind them.
func TestMediaDivide(t *testing.T) {
	f := newLists()
	cat, dog := pagefile.Media{Offset: 10, Hash: pagefile.Key{1}}, pagefile.Media{Offset: 10, Hash: pagefile.Key{2}}
	tokens := text(100, 100, 0)
	f.add(t, child(tokens, cat))
	require.True(t, f.find(t, tokens, cat)[0].Whole())
	found := f.find(t, tokens, dog)
	require.False(t, found[0].Whole())
	require.Less(t, found[0].Most, 100)
}

// TestAFailedList: candidates found before it count, and nothing is added behind it.
func TestAFailedList(t *testing.T) {
	f := newLists()
	for seed := range uint64(3 * listMost) {
		f.add(t, child(text(20, pageTokens, seed)))
	}
	for fail := 1; fail <= 3; fail++ {
		f.fail = fail
		found, err := Find(ctx, f, Prompt{Fingerprint: pagefile.Key{1}, Parent: pagefile.Key{1}, Tokens: text(20, 40, 90), PageTokens: pageTokens})
		require.Error(t, err)
		require.Len(t, found, (fail-1)*listMost)
		f.fail = fail
		_, err = Add(ctx, f, child(text(20, 40, 1000)), true)
		require.Error(t, err)
	}
}

// TestFindModel compares look-ups with all children: the best candidate shares as much as the best
// child, less a step, with pages of any size.
func TestFindModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{1, 4, 31, 64, 256}).Draw(rt, "page tokens")
		token := rapid.Int32Range(0, rapid.SampledFrom([]int32{0, 1, 3}).Draw(rt, "tokens"))
		f := newLists()
		var all []*pagefile.Header
		for range rapid.IntRange(0, 120).Draw(rt, "children") {
			n := rapid.IntRange(1, size).Draw(rt, "n")
			h := child(rapid.SliceOfN(token, n, n).Draw(rt, "child"))
			h.PageTokens = size
			f.add(rt, h)
			all = append(all, h)
		}
		prompt := rapid.SliceOfN(token, 1, size).Draw(rt, "prompt")
		found, err := Find(ctx, f, Prompt{Fingerprint: pagefile.Key{1}, Parent: pagefile.Key{1}, Tokens: prompt, PageTokens: size})
		require.NoError(rt, err)
		shares := func(key pagefile.Key) (most int) {
			for _, h := range all {
				if key == (pagefile.Key{}) || h.Key == key {
					most = max(most, pagefile.Shared(h.Tokens, prompt))
				}
			}
			return most
		}
		best := 0
		for _, c := range found {
			n := shares(c.Key)
			require.LessOrEqual(rt, c.Least, n)
			require.GreaterOrEqual(rt, c.Most, n)
			best = max(best, n)
		}
		require.GreaterOrEqual(rt, best, shares(pagefile.Key{})-max(1, size/steps))
	})
}

// TestImagesThatReachAhead: a prompt that does not know the reach of its image finds the tail.
func TestImagesThatReachAhead(t *testing.T) {
	f := newLists()
	tokens := text(100, 100, 0)
	image := pagefile.Media{Offset: 10, Hash: pagefile.Reaching([32]byte{1})}
	known := image
	known.Hash = pagefile.Reached(image.Hash, tokens[10:80], nil)
	for seed := range uint64(3 * listMost) {
		f.add(t, child(text(90, 100, 1+seed), known))
	}
	f.add(t, child(tokens, known))
	found := f.find(t, append(tokens, 1, 2), image)
	require.True(t, slices.ContainsFunc(found, func(c Candidate) bool {
		return c.Key == child(tokens, known).Key && c.MayBeWhole() && !c.Whole()
	}))
}
