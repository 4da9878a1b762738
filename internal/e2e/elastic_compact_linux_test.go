package e2e

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

var slotLine = regexp.MustCompile(`msg="loading cache slot" .*prompt=(\d+) used=(\d+)`)

// askHeld asks, and returns the tokens of the prompt, and how many of them a slot held.
func (s limited) askHeld(text string, tokens int) (got answer, prompt, held int) {
	s.t.Helper()
	mark := s.LogMark()
	got = s.ask(text, tokens)
	lines := slotLine.FindAllStringSubmatch(s.Logs()[mark:], -1)
	require.Len(s.t, lines, 1)
	for i, n := range []*int{&prompt, &held} {
		var err error
		*n, err = strconv.Atoi(lines[0][1+i])
		require.NoError(s.t, err)
	}
	return got, prompt, held
}

// answerTogether lets two prompts be answered side by side, so that the cells of their answers lie by
// turns. The slot of the first is the one that was used longest ago.
func (s limited) answerTogether(first, second ollamatest.Request) (answers [2]ollamatest.Result) {
	s.t.Helper()
	errs := make(chan error, len(answers))
	for i, request := range []ollamatest.Request{first, second} {
		mark := s.LogMark()
		go func() {
			var err error
			answers[i], err = s.Generate(s.context(), request)
			errs <- err
		}()
		require.NoError(s.t, s.WaitLogFrom(s.context(), mark, `msg="loading cache slot"`))
	}
	for range answers {
		require.NoError(s.t, <-errs)
	}
	for _, a := range answers {
		require.Greater(s.t, a.EvalCount, 400, "a long answer")
	}
	return answers
}

// scattered is how K and V of the test's model lie in memory: tensors that have memory by blocks, with the
// bytes of a row, and bytes that are committed in any case.
type scattered struct {
	name, flash, cacheType string
	tensors, row, fixed    int64
}

// bytes is the memory of a number of cells in the lowest blocks.
func (c scattered) bytes(cells int) int64 {
	const granule = 64 << 10
	blocks := int64(cells+255) / 256
	return c.fixed + c.tensors*((blocks*256*c.row+granule-1)/granule)*granule
}

// TestElasticScatteredConversation: a conversation whose answer was computed beside another needs its
// own memory when the other has left, and no more. Its next turn finds all of it, and goes on as it
// would have.
func TestElasticScatteredConversation(t *testing.T) {
	for _, c := range []scattered{
		{"f16", "1", "f16", 6, 256, 0},
		{"q8_0", "1", "q8_0", 6, 136, 0},
		{"no flash attention", "0", "f16", 3, 256, 3 * 256 * 2 * numCtx},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := []string{
				"OLLAMA_KV_TIERING=0", "OLLAMA_NUM_PARALLEL=2", "OLLAMA_MULTIUSER_CACHE=1", "OLLAMA_DEBUG=1",
				"OLLAMA_FLASH_ATTENTION=" + c.flash, "OLLAMA_KV_CACHE_TYPE=" + c.cacheType,
			}
			testScattered(t, c, limited{startPlain(t, append(elasticOn(t), env...)...), 2})
		})
	}
}

func testScattered(t *testing.T, c scattered, s limited) {
	s.ask(prompt(t, 10, 260), 1)
	name := s.segment().Name
	second := s.request(300, 262, 600)
	answers := s.answerTogether(s.request(300, 261, 600), second)

	turn := second.Prompt + answers[1].Text
	s.askHeld(turn, 8)
	want, tokens, held := s.askHeld(turn, 8)
	require.Equal(t, tokens-1, held, "all but the last token are in the slot")
	before, err := segment.Get(name)
	require.NoError(t, err)

	s.askHeld(prompt(t, 20, 263), 1) // takes the slot of the first conversation
	most := c.bytes(tokens + 8 + 20 + 1)
	require.Greater(t, before.Used, most)
	require.Eventually(t, func() bool {
		now, err := segment.Get(name)
		require.NoError(t, err)
		memory, _ := s.elasticBytes()
		return now.Used <= most && memory <= most
	}, timeout, 50*time.Millisecond, "%d bytes were in use, and %d suffice", before.Used, most)

	got, _, heldNow := s.askHeld(turn, 8)
	require.Equal(t, held, heldNow, "tokens that the slot holds")
	requireClose(t, want, got, 0.02) // in other cells low bits differ
	require.NotContains(t, s.Logs(), `level=WARN msg="kv elastic`)
}
