package llamae2e

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// conversation is a model and a conversation with it.
type conversation struct {
	name   string
	shape  testmodel.Shape
	args   string
	tokens int // of the first prompt
}

var conversations = []conversation{
	{name: "f16", shape: testmodel.Shape{Arch: "qwen3"}, tokens: 700},
	{name: "llama", shape: testmodel.Shape{Arch: "llama"}, tokens: 700},
	{name: "page boundary", shape: testmodel.Shape{Arch: "llama"}, tokens: 768 - 11},
	{name: "q8_0", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q8_0 -ctv q8_0", tokens: 700},
	{name: "q4_0", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q4_0 -ctv q4_0", tokens: 700},
	{name: "K q8_0, V f16", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q8_0", tokens: 700},
	{name: "without flash attention", shape: testmodel.Shape{Arch: "llama"}, args: "-fa off", tokens: 700},
	{name: "two slots", shape: testmodel.Shape{Arch: "llama"}, args: "-np 2 -c 4096", tokens: 700},
	{name: "four slots, without flash attention", shape: testmodel.Shape{Arch: "llama"}, args: "-np 4 -c 8192 -fa off", tokens: 700},
	{name: "four unified slots", shape: testmodel.Shape{Arch: "llama"}, args: "-np 4 -kvu -c 4096", tokens: 700},
	{name: "experts", shape: testmodel.Shape{Arch: "qwen3moe"}, tokens: 700},
	// With -nr: llama.cpp b10488 aborts where weights of latent attention are in buffers for AMX.
	{name: "latent", shape: testmodel.Shape{Arch: "deepseek2"}, args: "-nr", tokens: 700},
	{name: "latent, without flash attention", shape: testmodel.Shape{Arch: "deepseek2"}, args: "-fa off -nr", tokens: 700},
	{name: "long rope, short", shape: testmodel.Shape{Arch: "phi3"}, args: "-c 2048", tokens: 700},
	{name: "long rope, long", shape: testmodel.Shape{Arch: "phi3"}, tokens: 700},
	{name: "convolutions", shape: testmodel.Shape{Arch: "lfm2"}, tokens: 700},
	{name: "linear attention", shape: testmodel.Shape{Arch: "qwen3next"}, tokens: 700},
	{name: "linear attention, positions in sections", shape: testmodel.Shape{Arch: "qwen35"}, tokens: 700},
	{name: "scans", shape: testmodel.Shape{Arch: "nemotron_h"}, tokens: 700},
	{name: "window", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, tokens: 700},
	{name: "window, without flash attention", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, args: "-fa off", tokens: 700},
	{name: "window, q8_0", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, args: "-ctk q8_0 -ctv q8_0", tokens: 700},
	{name: "window as long as the prompt", shape: testmodel.Shape{Arch: "gemma3", Window: 512}, tokens: 512 - 11},
	{name: "window longer by one", shape: testmodel.Shape{Arch: "gemma3", Window: 513}, tokens: 512 - 11},
	{name: "window shorter by one", shape: testmodel.Shape{Arch: "gemma3", Window: 511}, tokens: 512 - 11},
	{name: "window much longer", shape: testmodel.Shape{Arch: "gemma3", Window: 1024}, tokens: 300},
	{name: "window with sinks", shape: testmodel.Shape{Arch: "gptoss", Window: 128}, tokens: 1500},
	{name: "window with sinks, shorter by one", shape: testmodel.Shape{Arch: "gptoss", Window: 511}, tokens: 512 - 11},
	{name: "window in half of the layers", shape: testmodel.Shape{Arch: "gemma3n", Window: 128}, tokens: 700},
	{name: "window with rows of another width", shape: testmodel.Shape{Arch: "gemma4", Window: 128}, tokens: 700},
	{name: "window, norms behind", shape: testmodel.Shape{Arch: "olmo3", Window: 128}, tokens: 700},
}

// turn is a prompt with its answer.
type turn struct {
	prompt []int32
	answer answer
	cached int  // tokens of the prompt that a killed server must not compute again
	moved  bool // a killed server has the rows of a window in other cells
}

// options say how to start a server for the conversation.
func (c *conversation) options(t *testing.T) llamatest.Options {
	return llamatest.Options{Model: aModel(t, c.shape), Args: append([]string{"-c", "4096", "-np", "1"}, strings.Fields(c.args)...)}
}

// say asks for 12 tokens after a prompt. With a window they are always the same: two tokens
// may be as likely as each other, and the conversations would part.
func (c *conversation) say(s *server, prompt []int32, more map[string]any) answer {
	in := map[string]any{"prompt": prompt, "n_predict": 12}
	if c.shape.Window > 0 {
		in["logit_bias"] = [][]float64{{500, 100}}
	}
	maps.Copy(in, more)
	return s.ask("/completion", in)
}

// hold is the conversation with a stock server that is never killed.
func (c *conversation) hold(s *server) []turn {
	turns := []turn{{prompt: someTokens(1, c.tokens)}}
	for i := 0; ; i++ {
		now := &turns[i]
		now.answer = c.say(s, now.prompt, map[string]any{"cache_prompt": i == 0 || now.cached > 0})
		if i == 2 {
			return turns
		}
		next := turn{prompt: append(slices.Clone(now.prompt), now.answer.Tokens...)}
		if next.cached = len(next.prompt) - 1; next.cached <= c.shape.Window {
			next.cached = 0 // see llamastate.Shape.Build
		}
		// After a restore the first cell of the window is that of the position before it. A
		// sequence that is longer than the window by one is in these cells from the beginning.
		next.moved = c.shape.Window > 0 && next.cached > c.shape.Window+1
		next.prompt = append(next.prompt, someTokens(2+i, 100)...)
		turns = append(turns, next)
	}
}

// TestAConversationComesBackAfterAKill: three turns, and after each the end of the process.
// The reference is a stock server that was not killed. The log probabilities are the same to
// the bit, unless the rows of a window are in other cells than in the reference: attention
// then adds up in another order, as in a stock server that also holds another conversation.
func TestAConversationComesBackAfterAKill(t *testing.T) {
	for _, c := range conversations {
		t.Run(c.name, func(t *testing.T) {
			o := c.options(t)
			stock := start(t, o)
			turns := c.hold(stock)
			stock.Kill()
			bound := 0.0
			if c.shape.Window > 0 {
				bound = 2 * c.spread(t, o, turns)
			}
			o.Root = filepath.Join(t.TempDir(), "pages")
			for i, turn := range turns {
				s := start(t, o)
				got := c.say(s, turn.prompt, nil)
				require.Equal(t, turn.cached, got.Timings.Cached)
				if turn.moved {
					requireSame(t, turn.answer, got, bound)
				} else {
					requireSame(t, turn.answer, got, 0)
				}
				if i == 0 {
					s.complete(someTokens(9, 300), 3) // another conversation, in the same slot where there is one
				}
				s.Kill()
				require.Positive(t, pages(t, o.Root))
			}
		})
	}
}

// spread is the greatest difference between log probabilities of two stock servers, one of
// which also holds another conversation in the same cache.
func (c *conversation) spread(t *testing.T, o llamatest.Options, turns []turn) (most float64) {
	o.Args = append(slices.Clone(o.Args), "-np", "2", "-kvu", "--cache-ram", "0")
	s := start(t, o)
	defer s.Kill()
	s.ask("/completion", map[string]any{"prompt": someTokens(9, 300), "n_predict": 3, "id_slot": 0})
	for _, turn := range turns {
		got := c.say(s, turn.prompt, map[string]any{"id_slot": 1})
		require.Equal(t, turn.answer.Tokens, got.Tokens)
		for i, p := range turn.answer.Probabilities {
			most = max(most, math.Abs(p.Logprob-got.Probabilities[i].Logprob))
		}
	}
	t.Logf("log probabilities of stock servers are up to %.4f apart", most)
	return most
}

// tokenize returns the tokens of a text.
func (s *server) tokenize(text string) []int32 {
	s.t.Helper()
	var out struct{ Tokens []int32 }
	s.read("/tokenize", map[string]any{"content": text, "parse_special": true}, &out)
	require.NotEmpty(s.t, out.Tokens)
	return out.Tokens
}

// TestAThinkingConversationComesBack: the next prompt has another answer than the one that was
// given, as templates make it that leave thoughts out. The reference is a stock server that
// computed each turn alone.
func TestAThinkingConversationComesBack(t *testing.T) {
	const turn = 1500
	for _, c := range []struct {
		shape testmodel.Shape
		bound float64
	}{
		{shape: testmodel.Shape{Arch: "lfm2"}},
		{shape: testmodel.Shape{Arch: "gemma3", Window: 128}, bound: 0.05},
	} {
		t.Run(c.shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, c.shape), Args: []string{"-c", "4096", "-np", "1"}}
			stock := start(t, o)
			opening := stock.tokenize("<|im_start|>assistant\n")
			first := slices.Concat(someTokens(1, turn), opening)
			next := slices.Concat(first, someTokens(3, 20), someTokens(4, 100), opening)
			stock.complete(first[:turn], 0)
			stock.complete(next[:len(next)-len(opening)], 0)
			want := stock.complete(next, 12)
			stock.Kill()

			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			a := s.complete(first, 8)
			require.Zero(t, a.Timings.Cached, "both steps count as one request")
			require.Equal(t, len(first), a.Timings.Computed)
			s.Kill()

			s = start(t, o)
			got := s.complete(next, 12)
			require.Equal(t, turn, got.Timings.Cached)
			requireSame(t, want, got, c.bound)
		})
	}
}
