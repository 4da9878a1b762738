package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

// elasticOn are the variables that make the KV cache elastic.
func elasticOn(t *testing.T) []string {
	t.Helper()
	if leftOut, err := withoutSet("elastic"); err != nil || leftOut {
		require.NoError(t, err)
		t.Skip("this Ollama was built without the patches of elastic memory")
	}
	name := fmt.Sprintf("kvtier-test-%d-%d", os.Getpid(), elasticServers.Add(1))
	t.Cleanup(func() { // a server kills its runners
		left, err := filepath.Glob(filepath.Join(segment.Dir, name+"_*"))
		require.NoError(t, err)
		for _, path := range left {
			_ = os.Remove(path)
		}
	})
	return []string{"OLLAMA_KVCACHED=1", "KVCACHED_IPC_NAME=" + name}
}

// elasticServers makes names of segments that belong to one test.
var elasticServers atomic.Int64

// turns are the requests of a conversation in one slot and of another that takes its place, and with
// shift one that goes beyond the end of the context.
func (s *server) turns(shift bool) (answers []answer) {
	first, second := prompt(s.t, 900, 70), prompt(s.t, 1500, 71)
	texts := []string{first, first + second[:400], second, first}
	if shift {
		texts = append(texts, prompt(s.t, numCtx-20, 72))
	}
	for _, text := range texts {
		answers = append(answers, s.ask(text, 40))
	}
	return answers
}

// TestElasticChangesNothing: with memory that comes and goes, answers are the same to the last bit,
// for every type of K and V, with flash attention and without, and with tiering. Without tiering Ollama
// computes a shift where outputs may not have been read yet, and the token before it is chance.
func TestElasticChangesNothing(t *testing.T) {
	on := elasticOn(t)
	for _, c := range []struct{ name, flash, cacheType, tiering string }{
		{"f16", "1", "f16", "0"}, {"q8_0", "1", "q8_0", "0"}, {"no flash attention", "0", "f16", "0"}, {"with tiering", "1", "f16", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := []string{
				"OLLAMA_FLASH_ATTENTION=" + c.flash, "OLLAMA_KV_CACHE_TYPE=" + c.cacheType, "OLLAMA_NUM_PARALLEL=2",
				"OLLAMA_KV_TIERING=" + c.tiering,
			}
			run := func(more ...string) []answer {
				s := startPlain(t, append(append([]string{"OLLAMA_KV_TIER_LOCAL=" + t.TempDir(), "OLLAMA_KV_TIER_TEST=1"}, more...), env...)...)
				answers := s.turns(c.tiering == "1")
				require.Equal(t, len(more) > 0, strings.Contains(s.Logs(), "kv elastic: on"))
				require.NotContains(t, s.Logs(), "level=WARN msg=\"kv elastic")
				return answers
			}
			stock, elastic := run(), run(on...)
			for i := range stock {
				requireSame(t, stock[i], elastic[i], fmt.Sprintf("request %d", i))
			}
		})
	}
}

var mapping = regexp.MustCompile(`(?s)\nSize: +(\d+) kB\n.*?\nRss: +(\d+) kB\n.*?\nVmFlags: ([^\n]*)\n`)

// elasticBytes is the memory, and the addresses, of the runner's mappings that hold K and V: those
// without reserved swap and without huge pages.
func (s *server) elasticBytes() (memory, addresses int64) {
	s.t.Helper()
	runners, err := s.Runners()
	require.NoError(s.t, err)
	require.Len(s.t, runners, 1)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", runners[0]))
	require.NoError(s.t, err)
	for _, m := range mapping.FindAllStringSubmatch(string(maps), -1) {
		if flags := " " + m[3] + " "; strings.Contains(flags, " nr ") && strings.Contains(flags, " nh ") {
			for i, sum := range []*int64{&addresses, &memory} {
				kb, err := strconv.ParseInt(m[1+i], 10, 64)
				require.NoError(s.t, err)
				*sum += kb << 10
			}
		}
	}
	return memory, addresses
}

// TestElasticMemoryFollowsUse: an idle model holds no memory for K and V, a prompt as much as its
// tokens take, and the memory that shorter conversations leave is given back while nobody asks.
func TestElasticMemoryFollowsUse(t *testing.T) {
	for _, tiering := range []string{"0", "1"} {
		t.Run("tiering "+tiering, func(t *testing.T) {
			testElasticMemory(t, "OLLAMA_KV_TIERING="+tiering, "OLLAMA_KV_TIER_LOCAL="+t.TempDir())
		})
	}
}

func testElasticMemory(t *testing.T, tiering ...string) {
	const (
		context = 32768
		slots   = 8
		tensors = 2 * 3 // K and V of 3 layers
		block   = 256 * bytesPerToken
		granule = 64 << 10
	)
	env := append(elasticOn(t), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=f16", fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots))
	s := startPlain(t, append(env, tiering...)...)
	long := func(r *ollamatest.Request) { r.Options["num_ctx"] = context }
	few := int64(2*block + 2*tensors*granule)
	s.ask(prompt(t, 20, 73), 2, long)
	idle, addresses := s.elasticBytes()
	require.GreaterOrEqual(t, addresses, int64(slots*context*bytesPerToken))
	require.LessOrEqual(t, idle, few, "a conversation of 22 tokens")
	const tokens = 5000
	s.ask(prompt(t, tokens, 74), 2, long)
	used, _ := s.elasticBytes()
	require.GreaterOrEqual(t, used, int64(tokens*bytesPerToken))
	require.LessOrEqual(t, used, int64(tokens*bytesPerToken)+idle+few)

	require.Less(t, used, int64(slots*context*bytesPerToken/32), "the context of all slots")
	s.emptySlots(slots, long)
	require.Eventually(t, func() bool {
		left, _ := s.elasticBytes()
		return left <= slots*few
	}, timeout, 50*time.Millisecond)
}

// emptySlots has every slot hold a short conversation.
func (s *server) emptySlots(slots int, change func(*ollamatest.Request)) {
	s.t.Helper()
	for i := range 2 * slots {
		s.ask(prompt(s.t, 20, int64(100+i)), 1, change)
	}
}
