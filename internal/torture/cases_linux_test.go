package torture

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/soak"
)

// bug is a case after a bug of another project.
type bug struct {
	name string // as docs/durability.md names the case
	play func(t *testing.T, l *lab)
}

// bugs are in the order of the table in docs/durability.md.
var bugs = []bug{
	{"wrong rows show", wrongRowsShow},
	{"LMCache 4385", anotherChat},
	{"LMCache 4991", failedStore},
	{"LMCache 4463", anotherLayout},
	{"LMCache 4247", sharedBeginning},
	{"LMCache 1175", indexAfterRestart},
	{"llama.cpp 27148", usedSlot},
	{"llama.cpp 25913", endsOfHybrids},
	{"llama.cpp 27068", brokenOffRestore},
	{"sglang 38031", roundTrips},
	{"sglang 27504", partOfThePage},
	{"sglang 24758", otherWeights},
	{"Mooncake 3465", emptyValue},
	{"Mooncake 850", evictedMeanwhile},
	{"vLLM 53569", groupsAfterRestart},
	{"vLLM 49176", asksAgain},
	{"vLLM 44250", otherAdapter},
	{"openvino.genai 3722", collidingHashes},
}

func TestLlama(t *testing.T)  { playAll(t, llama) }
func TestOllama(t *testing.T) { playAll(t, ollama) }

// lab has the rig that most cases share.
type lab struct {
	on    subject
	dense *rig
	seed  int64
}

func playAll(t *testing.T, on subject) {
	l := &lab{on: on, dense: newRig(t, on, setup{model: on.dense})}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			step := theCampaign().shown.Step(on.name + ": " + b.name)
			defer func() { step.End(result(t), nil) }()
			l.dense.t = t
			b.play(t, l)
			l.dense.forgive()
		})
	}
}

// result says how a case ended.
func result(t *testing.T) string {
	switch {
	case t.Failed():
		return "FAILED"
	case t.Skipped():
		return "cannot be played"
	}
	return "right"
}

const (
	someTokens = 12*pageTokens + 1 // of a prompt: whole pages, and the token that is always computed
	fewTokens  = 3                 // of an answer
)

// next is a prompt that no other case has.
func (l *lab) next(t testing.TB, tokens int) prompt {
	l.seed++
	return write(t, l.on.dense, tokens, l.seed)
}

// chat stores a conversation of the shared rig.
func (l *lab) chat(t testing.TB, tokens int) *chat {
	c := l.dense.store(l.next(t, tokens), fewTokens)
	require.GreaterOrEqual(t, len(c.pages), tokens/pageTokens, "pages that are stored")
	return c
}

// spoil gives all pages of a conversation another content, while no engine holds it.
func (r *rig) spoil(c *chat, content func(p pageFile) []byte) {
	r.t.Helper()
	require.NoError(r.t, r.ours.unload())
	for _, p := range c.pages {
		r.put(p.path, content(p))
	}
}

// wrongRowsShow: the cases prove nothing unless a wrong row changes an answer. Pages with wrong
// rows and right checksums are a forgery, against which there is no check.
func wrongRowsShow(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	r.whole(c, someTokens-1, "with all pages")
	r.forge(c)
	r.whole(c, someTokens-1, "healed")
}

// anotherChat: conversations that come back from disk answer with the content of others that are
// asked meanwhile. Then each page has the content of the page at the same place of another one.
func anotherChat(t *testing.T, l *lab) {
	r := l.dense
	chats := []*chat{l.chat(t, someTokens), l.chat(t, someTokens), l.chat(t, someTokens)}
	for range 2 {
		for _, c := range chats {
			short := l.next(t, 2*pageTokens+1)
			r.require(&chat{want: [][]logprob{r.computed(short, 1).logprobs}}, r.ask(short, 1), "a short chat meanwhile")
			r.again(c, "after a short chat")
		}
		require.NoError(t, r.ours.unload())
	}
	for i, c := range chats {
		other := chats[(i+1)%len(chats)]
		require.NoError(t, r.ours.unload())
		for j, p := range c.pages {
			r.put(p.path, other.pages[j%len(other.pages)].content)
		}
		require.Zero(t, r.again(c, "with another chat's pages"))
		r.heal(chats...)
	}
}

// failedStore: a store that failed midway leaves its key visible.
func failedStore(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	for _, part := range []int{1, 2, 3} {
		r.spoil(c, func(p pageFile) []byte { return p.content[:part*len(p.content)/4] })
		require.Zero(t, r.again(c, "of the write a part arrived"))
		r.spoil(c, func(p pageFile) []byte {
			b := make([]byte, len(p.content)) // the room was there, the bytes were not
			copy(b, p.content[:part*len(p.content)/4])
			return b
		})
		require.Zero(t, r.again(c, "of the bytes a part arrived"))
	}
	r.heal(c)
}

// emptyValue: keys are listed, and their values are empty.
func emptyValue(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	for _, content := range []func(p pageFile) []byte{
		func(pageFile) []byte { return nil },
		func(p pageFile) []byte { return p.content[:1] },
		func(p pageFile) []byte { return make([]byte, len(p.content)) },
	} {
		r.spoil(c, content)
		require.Zero(t, r.again(c, "without values"))
	}
	r.heal(c)
}

// collidingHashes: two texts have one key, and the stored page is that of the other text.
func collidingHashes(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	r.spoil(c, func(p pageFile) []byte { return sealed(p.content, otherTokens) })
	require.Zero(t, r.again(c, "with pages of another text"))
	r.heal(c)
	require.NoError(t, r.ours.unload())
	r.put(c.pages[8].path, sealed(c.pages[8].content, otherTokens))
	require.LessOrEqual(t, r.again(c, "the ninth page is of another text"), 8*pageTokens)
	r.heal(c)
}

// indexAfterRestart: an index in memory is lost in a restart, or knows files that are gone. The
// files are taken away and put back beside a running server.
func indexAfterRestart(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	require.NoError(t, r.ours.crash())
	r.whole(c, someTokens-1, "after kill -9")
	other := l.chat(t, someTokens)
	for range 2 {
		for _, p := range c.pages {
			require.NoError(t, os.RemoveAll(p.path))
		}
		require.Zero(t, r.again(c, "the files are gone"))
		r.again(other, "takes the slot")
		r.heal(c)
		require.NoError(t, r.ours.unload())
		r.again(other, "takes the slot")
		r.whole(c, someTokens-1, "the files are back")
		r.again(other, "takes the slot")
	}
}

// usedSlot: a slot that held another conversation keeps it when nothing was restored.
func usedSlot(t *testing.T, l *lab) {
	r := l.dense
	long, short := l.chat(t, someTokens), l.chat(t, 6*pageTokens+1)
	for _, content := range []func(p pageFile) []byte{nil, func(p pageFile) []byte { return p.content[:len(p.content)/2] }} {
		require.NoError(t, r.ours.unload())
		r.again(long, "in an empty slot")
		for _, p := range short.pages {
			if content != nil {
				r.put(p.path, content(p))
			}
		}
		r.again(short, "in the slot of a longer one")
		fresh := l.next(t, 5*pageTokens+1)
		r.require(&chat{want: [][]logprob{r.computed(fresh, fewTokens).logprobs}}, r.ask(fresh, fewTokens), "a new chat in the slot")
		r.again(long, "in the slot of others")
	}
	r.heal(long, short)
}

// asksAgain: a page cannot be loaded, and the request asks for it for ever. The page is computed,
// and stored again.
func asksAgain(t *testing.T, l *lab) {
	r, c := l.dense, l.chat(t, someTokens)
	r.spoil(c, func(p pageFile) []byte { return p.content[:len(p.content)-1] })
	for range 2 {
		r.again(c, "with damaged pages")
	}
	require.NoError(t, r.ours.unload())
	r.whole(c, someTokens-1, "stored again")
	r.heal(c)
}

// evictedMeanwhile: pages are evicted while they are read, by another server or a person.
func evictedMeanwhile(t *testing.T, l *lab) {
	r := l.dense
	chats := []*chat{l.chat(t, someTokens), l.chat(t, someTokens)}
	for round := range 4 {
		c := chats[round%2]
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Add(1)
		go func() {
			defer all.Done()
			for _, p := range slices.Backward(c.pages) {
				select {
				case <-stop:
					return
				default:
					_ = os.Remove(p.path) // it may be gone already
				}
			}
		}()
		r.again(c, "while its pages are evicted")
		close(stop)
		all.Wait()
		r.heal(chats...)
	}
}

// roundTrips: rows change on the way through other places. A conversation goes through files,
// compressed and packed into 8 bits, and through memory, many times.
func roundTrips(t *testing.T, l *lab) {
	r := newRig(t, l.on, setup{model: l.on.dense, keys: "q8_0", env: []string{"OLLAMA_KV_TIER_COMPRESS=1", "OLLAMA_KV_TIER_RAM_GB=0.1"}})
	defer r.close()
	a := r.store(write(t, l.on.dense, someTokens, 1), fewTokens)
	b := r.store(write(t, l.on.dense, someTokens, 2), fewTokens)
	for range 3 {
		for range 2 {
			r.whole(a, someTokens-1, "from a file or from memory")
			r.whole(b, someTokens-1, "from a file or from memory")
		}
		require.NoError(t, r.ours.unload())
	}
}

// otherWeights: a model of the same name and the same shape has other weights.
func otherWeights(t *testing.T, l *lab) {
	p := l.next(t, someTokens)
	r := l.dense
	c := r.store(p, fewTokens)
	r.whole(c, someTokens-1, "the first weights")
	other := l.on.dense
	other.Seed += 1000
	s := newRig(t, l.on, setup{model: other, root: r.root})
	defer s.close()
	d := &chat{prompt: p, tokens: fewTokens, want: [][]logprob{s.computed(p, fewTokens).logprobs}}
	require.Error(t, r.wrong(c, answer{logprobs: d.want[0]}), "both weights give one answer")
	require.Zero(t, s.again(d, "pages of other weights"))
}

// anotherLayout: rows of one layout are read as rows of another that takes as many bytes.
func anotherLayout(t *testing.T, l *lab) {
	r, p := l.dense, l.next(t, someTokens)
	c := r.store(p, fewTokens)
	setups := []setup{{plain: true}, {keys: "q8_0"}}
	if l.on.valueTypes {
		setups = append(setups, setup{keys: "q8_0", values: "f16"}, setup{keys: "f16", values: "q8_0"})
	}
	var before *chat
	for _, s := range setups {
		s.model, s.gguf, s.root = l.on.dense, r.setup.gguf, r.root
		o := newRig(t, l.on, s)
		d := &chat{prompt: p, tokens: fewTokens, want: [][]logprob{o.computed(p, fewTokens).logprobs}}
		require.Zero(t, o.again(d, "pages of another layout"))
		require.NoError(t, o.ours.unload())
		d.pages = o.fresh()
		for _, from := range []*chat{c, before} {
			if from == nil {
				continue
			}
			for i, page := range d.pages[:min(len(d.pages), len(from.pages))] {
				o.put(page.path, from.pages[i].content)
			}
			require.Zero(t, o.again(d, "files of another layout"))
			o.heal(d)
			require.NoError(t, o.ours.unload())
		}
		before = d
		o.close()
	}
	require.NoError(t, r.ours.unload())
	r.whole(c, someTokens-1, "its own layout")
}

// sharedBeginning: conversations of a model with several kinds of layers share their beginning,
// and are restored with the wrong rows.
func sharedBeginning(t *testing.T, l *lab) {
	for _, s := range []setup{hybrid(l.on), windowed(l.on)} {
		r := newRig(t, l.on, s)
		begin := write(t, s.model, someTokens-1, 1)
		first := begin.then(answer{}, write(t, s.model, 3*pageTokens+1, 2))
		second := begin.then(answer{}, write(t, s.model, 3*pageTokens+1, 3))
		a, b := r.store(first, fewTokens), r.store(second, fewTokens)
		for range 2 {
			r.again(b, "after the one that begins alike")
			r.again(a, "after the one that begins alike")
			require.NoError(t, r.ours.unload())
		}
		r.close()
	}
}

// endsOfHybrids: a restored state of a hybrid model is of no use, and all is computed.
func endsOfHybrids(t *testing.T, l *lab) { comesBack(t, l.on, hybrid(l.on)) }

// groupsAfterRestart: a model with several groups of layers finds nothing after a restart.
func groupsAfterRestart(t *testing.T, l *lab) { comesBack(t, l.on, windowed(l.on)) }

// comesBack requires that the first turn of a conversation is not computed after kill -9.
func comesBack(t *testing.T, on subject, s setup) {
	r := newRig(t, on, s)
	defer r.close()
	c := r.converse(write(t, s.model, someTokens, 1), write(t, s.model, 2*pageTokens, 2), fewTokens)
	require.NoError(t, r.ours.crash())
	r.whole(c, someTokens, "after kill -9")
}

// partOfThePage: of a page only some parts come back: the rows, and not their state or window. One
// section of a page is damaged, page after page.
func partOfThePage(t *testing.T, l *lab) {
	for _, s := range []setup{hybrid(l.on), windowed(l.on)} {
		r := newRig(t, l.on, s)
		c := r.converse(write(t, s.model, someTokens, 1), write(t, s.model, 2*pageTokens, 2), fewTokens)
		for i := len(c.pages) - 1; i >= 0; i -= 5 {
			require.NoError(t, r.ours.unload())
			p := c.pages[i]
			r.put(p.path, lastSection(p))
			r.again(c, "without a part of a page")
			r.heal(c)
		}
		r.close()
	}
}

// brokenOffRestore: a restore that fails midway leaves rows, which the next requests see.
func brokenOffRestore(t *testing.T, l *lab) {
	r := newRig(t, l.on, setup{model: l.on.dense, env: streams(t)})
	defer r.close()
	c := r.store(write(t, l.on.dense, someTokens, 1), fewTokens)
	next := r.store(write(t, l.on.dense, someTokens, 2), fewTokens)
	for _, i := range []int{0, 5, 11} {
		require.NoError(t, r.ours.unload())
		r.put(c.pages[i].path, lastSection(c.pages[i]))
		r.again(c, "a restore breaks off")
		r.again(next, "the request behind it")
		r.again(c, "once more")
		r.heal(c, next)
	}
}

// otherAdapter: rows that were computed with one adapter are used with another.
func otherAdapter(t *testing.T, l *lab) {
	if !l.on.adapters {
		t.Skip("models with adapters are not tiered")
	}
	r, p := l.dense, l.next(t, someTokens)
	c := r.store(p, fewTokens)
	answers := [][]logprob{c.want[0]}
	for seed := range uint64(2) {
		s := newRig(t, l.on, setup{model: l.on.dense, gguf: r.setup.gguf, adapter: adapterOf(t, l.on.dense, seed), root: r.root})
		d := &chat{prompt: p, tokens: fewTokens, want: [][]logprob{s.computed(p, fewTokens).logprobs}}
		for _, other := range answers {
			require.Error(t, soak.Same(other, d.want[0]), "the adapter changes nothing")
		}
		answers = append(answers, d.want[0])
		require.Zero(t, s.again(d, "rows of another adapter"))
		require.NoError(t, s.ours.unload())
		s.whole(d, someTokens-1, "rows of this adapter")
		s.close()
	}
	require.NoError(t, r.ours.unload())
	r.whole(c, someTokens-1, "rows without an adapter")
}
