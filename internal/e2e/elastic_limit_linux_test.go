package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// elasticBlock is the memory of the smallest number of tokens that gets some, in the test's model.
const elasticBlock = 256 * bytesPerToken

// limited is a server whose K and V have a limit.
type limited struct {
	*server
	slots int
}

func startLimited(t *testing.T, slots int, env ...string) limited {
	t.Helper()
	env = append(append(elasticOn(t), env...), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=f16",
		fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots))
	return limited{startPlain(t, env...), slots}
}

// segment is the memory of the runner, which is loaded.
func (s limited) segment() segment.Segment {
	s.t.Helper()
	runners, err := s.Runners()
	require.NoError(s.t, err)
	require.Len(s.t, runners, 1)
	var found segment.Segment
	require.Eventually(s.t, func() bool {
		all, err := segment.List()
		require.NoError(s.t, err)
		for _, one := range all {
			if one.PID == runners[0] {
				found = one
			}
		}
		return found.Name != ""
	}, timeout, 10*time.Millisecond, "no segment belongs to process %d", runners[0])
	return found
}

// limit sets the limit in blocks and waits until the runner obeys it and no more is held.
func (s limited) limit(blocks int64) {
	s.t.Helper()
	name := s.segment().Name
	require.NoError(s.t, segment.SetLimit(name, blocks*elasticBlock))
	s.await(name, func(now segment.Segment) bool {
		return now.InForce == blocks*elasticBlock && now.Used+now.Kept <= now.InForce
	})
}

// await waits until a segment shows the figures that are wanted. An earlier request may have left the
// like: a test that waits for those of a request first waits until these are gone.
func (s limited) await(name string, wanted func(now segment.Segment) bool) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		now, err := segment.Get(name)
		require.NoError(s.t, err)
		return wanted(now)
	}, timeout, time.Millisecond)
}

func (s limited) request(tokens int, seed int64, answer int) ollamatest.Request {
	return requestFor(prompt(s.t, tokens, seed), answer)
}

// TestElasticLimit: a lower limit takes the memory of conversations that nobody waits for, the oldest
// first. With tiering they are restored, and without computed again.
func TestElasticLimit(t *testing.T) {
	for _, tiering := range []string{"0", "1"} {
		t.Run("tiering "+tiering, func(t *testing.T) {
			s := startLimited(t, 4, "OLLAMA_KV_TIERING="+tiering, "OLLAMA_KV_TIER_LOCAL="+t.TempDir(), "OLLAMA_KV_TIER_TEST=1",
				"OLLAMA_MULTIUSER_CACHE=1") // each conversation in a slot of its own
			var texts []string
			var first []answer
			for i := range 4 {
				texts = append(texts, prompt(t, 900, int64(200+i)))
				first = append(first, s.ask(texts[i], 8))
			}
			full := s.segment()
			require.EqualValues(t, 4*numCtx*bytesPerToken, full.Limit, "the whole context of all slots")
			s.await(full.Name, func(now segment.Segment) bool { return now.Used >= 4*900*bytesPerToken && now.Spare == now.Used })

			s.limit(8) // two of the conversations
			memory, _ := s.elasticBytes()
			require.LessOrEqual(t, memory, int64(8*elasticBlock), "the system has the memory")
			held := s.ask(texts[3], 8)
			requireAlike(t, first[3], held, "the latest conversation")
			require.Zero(t, held.restored, "it was held")
			for i, text := range texts {
				got := s.ask(text, 8)
				requireAlike(t, first[i], got, fmt.Sprintf("conversation %d", i))
				if i < 2 {
					require.Equal(t, tiering == "1", got.restored > 0, "restored %d tokens of conversation %d", got.restored, i)
				}
				now, err := segment.Get(full.Name)
				require.NoError(t, err)
				require.LessOrEqual(t, now.Used, now.Limit)
			}
			require.NotContains(t, s.Logs(), "takes more than the limit")
		})
	}
}

// requireAlike fails unless two answers begin alike. In other cells, and in batches of another size, low
// bits differ.
func requireAlike(t *testing.T, want, got answer, what string) {
	t.Helper()
	require.NotEmpty(t, got.Logprobs, what)
	require.InDelta(t, want.Logprobs[0].Logprob, got.Logprobs[0].Logprob, 0.01, what)
}

// TestElasticIdleConversationsLeave: a time after its last request a conversation gives its memory up,
// and not while it is answered. With tiering on its next turn is restored.
func TestElasticIdleConversationsLeave(t *testing.T) {
	for _, tiering := range []string{"0", "1"} {
		t.Run("tiering "+tiering, func(t *testing.T) {
			s := startLimited(t, 4, "OLLAMA_KV_TIERING="+tiering, "OLLAMA_KV_TIER_LOCAL="+t.TempDir(), "OLLAMA_KVCACHED_IDLE=700ms")
			text := prompt(t, 900, 210)
			first := s.ask(text, 300) // takes longer than 700 ms
			name := s.segment().Name
			s.await(name, func(now segment.Segment) bool { return now.Used == 0 })
			memory, _ := s.elasticBytes()
			require.Zero(t, memory, "the system has the memory")
			again := s.ask(text, 300)
			require.Equal(t, tiering == "1", again.restored > 0)
			requireAlike(t, first, again, "after it was idle")
			require.Len(t, again.Logprobs, len(first.Logprobs), "a whole answer")
		})
	}
}

// TestElasticPromptsWaitForMemory: prompts that have room one by one but not together wait for each
// other, and at no time more is held than the limit.
func TestElasticPromptsWaitForMemory(t *testing.T) {
	s := startLimited(t, 4, "OLLAMA_KV_TIERING=0")
	s.ask(prompt(t, 10, 210), 1)
	s.limit(6)
	name := s.segment().Name

	const prompts = 8
	errs := make(chan error, prompts)
	for i := range prompts {
		request := s.request(900, int64(220+i), 30)
		go func() {
			result, err := s.Generate(s.context(), request)
			if err == nil && (result.PromptEvalCount != 900 || result.EvalCount != 30) {
				err = fmt.Errorf("%d tokens of the prompt and %d of the answer were evaluated", result.PromptEvalCount, result.EvalCount)
			}
			errs <- err
		}()
	}
	most := int64(0)
	for left := prompts; left > 0; {
		select {
		case err := <-errs:
			require.NoError(t, err)
			left--
		case <-time.After(5 * time.Millisecond):
		}
		if now, err := segment.Get(name); err == nil {
			most = max(most, now.Used+now.Kept)
		}
	}
	require.LessOrEqual(t, most, int64(6*elasticBlock))
	require.NotContains(t, s.Logs(), "takes more than the limit")
}

// TestElasticPromptWaitsForALimit: a prompt that is larger than the limit fails with numbers, unless
// the limit is raised in time. Programs that divide memory see how much it lacks.
func TestElasticPromptWaitsForALimit(t *testing.T) {
	s := startLimited(t, 2, "OLLAMA_KV_TIERING=0", "OLLAMA_KVCACHED_LIMIT_MB=1") // two blocks
	s.ask(prompt(t, 10, 230), 1)
	name := s.segment().Name

	_, err := s.Generate(s.context(), s.request(900, 231, 4))
	require.ErrorContains(t, err, "no room for the K/V of 900 tokens")
	require.ErrorContains(t, err, "of 1 MiB are in use")
	require.ErrorContains(t, err, "kvtier limit")
	s.await(name, func(now segment.Segment) bool { return now.Lacking == 0 })

	done := make(chan error, 1)
	request := s.request(900, 232, 4)
	go func() {
		_, err := s.Generate(s.context(), request)
		done <- err
	}()
	s.await(name, func(now segment.Segment) bool { return now.Lacking >= 2*elasticBlock })
	require.NoError(t, segment.SetLimit(name, 8*elasticBlock))
	require.NoError(t, <-done)
	require.Equal(t, answerOf(t, s, 232), answerOf(t, s, 232))
}

// answerOf asks a short question.
func answerOf(t *testing.T, s limited, seed int64) string {
	t.Helper()
	result, err := s.Generate(s.context(), s.request(100, seed, 8))
	require.NoError(t, err)
	return result.Text
}

// TestElasticHostileLimits: limits that cannot be meant are put right, a deleted segment is made again,
// and a tool that was stopped with the lock in its hand stops nobody.
func TestElasticHostileLimits(t *testing.T) {
	s := startLimited(t, 2, "OLLAMA_KV_TIERING=0")
	answerOf(t, s, 240)
	good := s.segment()
	path := filepath.Join(segment.Dir, good.Name)
	for _, total := range []int64{0, -1, 1, 1 << 62} {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(total)), 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Eventually(t, func() bool {
			now, err := segment.Get(good.Name)
			return err == nil && now.Limit == good.Limit
		}, timeout, 10*time.Millisecond, "a limit of %d", total)
	}
	require.Contains(t, s.Logs(), "the limit in the segment is not in force")
	require.NoError(t, os.Remove(path))
	require.Eventually(t, func() bool {
		now, err := segment.Get(good.Name)
		return err == nil && now.Limit == good.Limit
	}, timeout, 10*time.Millisecond, "a deleted segment")
	answerOf(t, s, 241)

	unlock := lockFile(t, path)
	answerOf(t, s, 242)
	unlock()

	require.NoError(t, s.KillRunner())
	answerOf(t, s, 243)
	require.NotEqual(t, good.Name, s.segment().Name)
	_, err := segment.Get(good.Name)
	require.ErrorIs(t, err, segment.ErrNoSegment, "the segment of the killed runner was removed by the next")
}

// TestKvtierLimit: the tool lists a server's memory under the model's name and limits it.
func TestKvtierLimit(t *testing.T) {
	s := startLimited(t, 2, "OLLAMA_KV_TIERING=0")
	k := buildTool(t, t.TempDir())
	s.ask(prompt(t, 900, 250), 1)
	name := s.segment().Name
	s.await(name, func(now segment.Segment) bool { return now.Used == 3<<19 })
	list := k.run(0, "limit")
	require.Contains(t, list, "NAME")
	require.Regexp(t, name+` +.*\b`+model+`:latest +\d+ +1\.5 MiB +0 B +6\.0 MiB +live`, list)
	require.Regexp(t, name+` .* 1\.5 MiB .* 2\.0 MiB`, k.run(0, "limit", model, "2M"))
	require.Contains(t, k.run(0, "limit", name, "1M"), "0 B") // the conversation had to go
	require.Contains(t, k.run(1, "limit", name, "1"), "has put in place of 1 B")
	require.Contains(t, k.run(1, "limit", "missing", "1G"), "no such segment")
	require.Contains(t, k.run(2, "limit", name, "0"), "not a size of memory")
	require.Contains(t, k.run(0, "limit", "--json"), `"limit_bytes": 1048576`)
	require.True(t, strings.HasPrefix(name, "kvtier-test-"))
	_, err := s.Generate(context.Background(), s.request(100, 251, 4))
	require.NoError(t, err)
}

// lockFile takes a file's lock until the returned function is called.
func lockFile(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() { require.NoError(t, f.Close()) }
}

// TestElasticLimitFallsUnderWork: a prompt that is being evaluated keeps all of its text, and an answer
// goes on in the memory that it has, when the limit falls below the memory in use. It was halved, ended the
// runner of a model that cannot shift, and shifted.
func TestElasticLimitFallsUnderWork(t *testing.T) {
	architectures := []string{model, "qwen3next"}
	cases := []struct {
		name           string
		tokens, answer int
		part           int64 // in eighths of a context, at which the limit falls to one less
	}{{"prompt", 1900, 4, 4}, {"answer", 1300, 200, 6}}
	plays := matrix(t, len(architectures), len(cases))
	for i, arch := range architectures {
		for k, c := range cases {
			if !plays(i, k) {
				continue
			}
			t.Run(arch+" "+c.name, func(t *testing.T) {
				s := startLimited(t, 1, "OLLAMA_KV_TIERING=0", "OLLAMA_NEW_ENGINE=1")
				if arch != model {
					modelServer{s.server}.load(t, arch)
				}
				request := func(tokens int, seed int64, answer int) ollamatest.Request {
					r := s.request(tokens, seed, answer)
					r.Model, r.Logprobs, r.Options["num_batch"] = arch, true, 16
					return r
				}
				want, err := s.Generate(s.context(), request(c.tokens, 300, c.answer))
				require.NoError(t, err)
				_, err = s.Generate(s.context(), request(10, 301, 1))
				require.NoError(t, err)
				runners, err := s.Runners()
				require.NoError(t, err)

				held := s.segment()
				// Memory of the first conversation goes first: memory that comes then is that of a prompt that was let in.
				s.await(held.Name, func(now segment.Segment) bool { return now.Used <= held.Limit/8 })
				done := make(chan ollamatest.Result, 1)
				again := request(c.tokens, 300, c.answer)
				go func() {
					got, _ := s.Generate(s.context(), again)
					done <- got
				}()
				s.await(held.Name, func(now segment.Segment) bool { return now.Used >= held.Limit*c.part/8 })
				require.NoError(t, segment.SetLimit(held.Name, held.Limit*(c.part-1)/8))
				got := <-done
				require.Equal(t, c.answer, got.EvalCount)
				requireAlike(t, answer{Result: want}, answer{Result: got}, "the answer")
				require.NotContains(t, s.Logs(), "limiting it")
				now, err := s.Runners()
				require.NoError(t, err)
				require.Equal(t, runners, now, "the runner is the same")
			})
		}
	}
}

var memoryLines = regexp.MustCompile(`(?m)^(?:MemTotal|SwapTotal): +(\d+) kB$`)

// systemBytes is all memory of the machine, with swap.
func systemBytes(t *testing.T) (sum int64) {
	t.Helper()
	lines, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for _, m := range memoryLines.FindAllStringSubmatch(string(lines), -1) {
		kb, err := strconv.ParseInt(m[1], 10, 64)
		require.NoError(t, err)
		sum += kb << 10
	}
	return sum
}

// askWide asks a model whose slots have a context of so many tokens.
func (s *server) askWide(name string, context int) error {
	s.t.Helper()
	_, err := s.Generate(s.context(), requestFor(prompt(s.t, 40, 110), 4, func(r *ollamatest.Request) {
		r.Model, r.Options["num_ctx"], r.Options["num_batch"] = name, context, 32
	}))
	return err
}

// TestElasticModelIsPlacedByOneSlot: a model whose slots together reach further than all memory
// of the machine is refused without the variable. With it the model is loaded and answers, and a second
// such model is loaded beside it.
func TestElasticModelIsPlacedByOneSlot(t *testing.T) {
	on := elasticOn(t)
	wide := testmodel.Shape{Arch: "qwen3", Layers: 16, Embed: 64, Heads: 16, KVHeads: 16, HeadDim: 64, FFN: 64}.WithDefaults()
	models := map[string]string{}
	for seed, name := range []string{"wide", "wide-too"} {
		models[name], wide.Seed = filepath.Join(t.TempDir(), name+".gguf"), int64(seed)
		require.NoError(t, testmodel.Write(models[name], wide))
	}
	const context = 65536
	slot := context * wide.KVBytesPerToken()
	slots := systemBytes(t)*5/4/slot + 1
	env := []string{fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=f16", "OLLAMA_KV_TIERING=0", "OLLAMA_MAX_LOADED_MODELS=2"}

	stock := startPlain(t, env...)
	stock.create("wide", models["wide"])
	require.ErrorContains(t, stock.askWide("wide", context), "requires more system memory")

	s := startPlain(t, append(on, env...)...)
	for name, gguf := range models {
		s.create(name, gguf)
		require.NoError(t, s.askWide(name, context), name)
	}
	runners, err := s.Runners()
	require.NoError(t, err)
	require.Len(t, runners, 2, "both models are loaded")
}
