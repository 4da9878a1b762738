package llamae2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestAConversationComesBackAfterAKill: a prompt, an answer, the end of the process, and the
// next prompt of the conversation. The reference is a stock server that was not killed.
func TestAConversationComesBackAfterAKill(t *testing.T) {
	for _, c := range []struct {
		name   string
		shape  testmodel.Shape
		args   string
		tokens int
		bound  float64 // of log probabilities
	}{
		{name: "f16", shape: testmodel.Shape{Arch: "qwen3"}, tokens: 700},
		{name: "llama", shape: testmodel.Shape{Arch: "llama"}, tokens: 700},
		{name: "page boundary", shape: testmodel.Shape{Arch: "llama"}, tokens: 768 - 7},
		{name: "q8_0", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q8_0 -ctv q8_0", tokens: 700},
		{name: "q4_0", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q4_0 -ctv q4_0", tokens: 700},
		{name: "K q8_0, V f16", shape: testmodel.Shape{Arch: "llama"}, args: "-ctk q8_0", tokens: 700},
		{name: "without flash attention", shape: testmodel.Shape{Arch: "llama"}, args: "-fa off", tokens: 700},
		{name: "two slots", shape: testmodel.Shape{Arch: "llama"}, args: "-np 2 -c 4096", tokens: 700},
		{name: "four slots, without flash attention", shape: testmodel.Shape{Arch: "llama"}, args: "-np 4 -c 8192 -fa off", tokens: 700},
		{name: "four unified slots", shape: testmodel.Shape{Arch: "llama"}, args: "-np 4 -kvu -c 4096", tokens: 700},
		{name: "hybrid", shape: testmodel.Shape{Arch: "lfm2"}, tokens: 700},
		// The cells of a window are in another order, so sums are rounded in another order.
		{name: "window", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, tokens: 700, bound: 0.05},
		{name: "window as long as the prompt", shape: testmodel.Shape{Arch: "gemma3", Window: 512}, tokens: 512 - 7, bound: 0.05},
		{name: "window longer by one", shape: testmodel.Shape{Arch: "gemma3", Window: 513}, tokens: 512 - 7, bound: 0.05},
		{name: "window shorter by one", shape: testmodel.Shape{Arch: "gemma3", Window: 511}, tokens: 512 - 7, bound: 0.05},
		{name: "window much longer", shape: testmodel.Shape{Arch: "gemma3", Window: 1024}, tokens: 300, bound: 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options{model: aModel(t, c.shape), args: append([]string{"-c", "4096", "-np", "1"}, strings.Fields(c.args)...)}
			stock := start(t, o)
			first := stock.complete(someTokens(1, c.tokens), 8)
			next := append(append(someTokens(1, c.tokens), first.Tokens...), someTokens(2, 100)...)
			want := stock.complete(next, 12)
			stock.kill()

			o.root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			requireSame(t, first, s.complete(someTokens(1, c.tokens), 8), 0)
			s.complete(someTokens(9, 300), 3) // another conversation, in the same slot where there is one
			s.kill()
			require.Positive(t, pages(t, o.root))

			s = start(t, o)
			got := s.complete(next, 12)
			cached := c.tokens + 7
			if c.shape.Window >= cached {
				cached = 0 // see llamastate.Shape.Build
			}
			require.Equal(t, cached, got.Timings.Cached)
			requireSame(t, want, got, c.bound)
		})
	}
}
