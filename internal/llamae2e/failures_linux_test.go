package llamae2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// failing is a conversation that something goes wrong with. A stock server with which nothing goes wrong
// has held it.
type failing struct {
	*conversation
	t     *testing.T
	o     llamatest.Options
	turns []turn
}

// failures are the rows of the table in docs/llama-server.md.
var failures = map[string]func(f *failing){
	"slow start":      (*failing).opensSlowly,
	"slow disk":       (*failing).isSlow,
	"hung disk":       (*failing).hangs,
	"large requests":  (*failing).largeRequests,
	"another API":     (*failing).anotherAPI,
	"killed engine":   (*failing).killedEngine,
	"refused options": (*failing).refusedOptions,
	"killed daemons":  (*failing).killedDaemons,
	"TMPDIR":          (*failing).hungTemporaryDirectory,
}

// TestFailures: whatever fails, a request has the answer of the stock server, and what was stored comes
// back. What takes minutes is shown with an engine of the tests' own: a server that does not answer a question
// of ours (llamatier.TestAQuestionThatIsNotAnswered, TestAnEngineThatDoesNotAnswer), or is busy when a request
// of another API comes (TestAHungEngineBeforeAnUnknownRequest), and a page or a write on a disk that hangs
// (TestAPutThatHangs, TestADiskThatFailsAtAnyOperation). So are what a slow look-up finds
// (engine.TestWhatASlowDiskFinds), and how many lines of the log wait (front.TestALogThatHangs).
func TestFailures(t *testing.T) {
	c := &conversation{shape: testmodel.Shape{Arch: "qwen3", Layers: 2, Embed: 256, Heads: 4, KVHeads: 2}, args: "-ub 1 -t 1", tokens: 600}
	o := c.options(t)
	stock := start(t, o)
	turns := c.hold(stock)
	stock.Kill()
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			f := &failing{conversation: c, t: t, o: o, turns: turns}
			f.o.Root = filepath.Join(t.TempDir(), "pages")
			f.o.Log = f.o.Root + ".log"
			test(f)
		})
	}
}

// says has the answer of a turn, to the bit, and returns how many tokens were not computed.
func (f *failing) says(s *server, turn int) (cached int) {
	f.t.Helper()
	got := f.say(s, f.turns[turn].prompt, nil)
	requireSame(f.t, f.turns[turn].answer, got, 0)
	return got.Timings.Cached
}

// store stores the first turn.
func (f *failing) store() {
	f.t.Helper()
	s := start(f.t, f.o)
	require.Zero(f.t, f.says(s, 0))
	s.Kill()
}

// comesBack requires that a new server computes nothing of the conversation before a turn.
func (f *failing) comesBack(turn int) *server {
	f.t.Helper()
	s := start(f.t, f.o)
	require.GreaterOrEqual(f.t, f.says(s, turn), f.turns[turn].cached)
	return s
}

// mounted moves the pages to a disk that can fail.
func (f *failing) mounted() *mounts.Passthrough {
	mount := mounts.NewPassthrough(f.t, f.t.TempDir())
	f.o.Root = filepath.Join(mount.Dir, "pages")
	return mount
}

// begin is start for a server whose pages are not waited for.
func (f *failing) begin() *server {
	o := f.o
	o.Hung = true
	return start(f.t, o)
}

// opensSlowly: the disk hangs before anything is asked of it, and later than that. Prompts are answered
// without the store. It is used as soon as it is open.
func (f *failing) opensSlowly() {
	mount := f.mounted()
	for _, slow := range []struct {
		ops  []mounts.Op
		logs []string
	}{
		{[]mounts.Op{mounts.OpReadDir}, []string{"the store is not open yet"}},
		{mounts.AllOps, []string{"the local disk does not answer", "the store is not open yet"}},
	} {
		require.NoError(f.t, os.RemoveAll(f.o.Log))
		require.NoError(f.t, os.RemoveAll(f.o.Root))
		stalled := mount.Stall(slow.ops...)
		s := f.begin()
		<-stalled
		require.Zero(f.t, f.says(s, 0))
		for _, text := range slow.logs {
			waitLog(f.t, f.o.Log, text, 1)
		}
		mount.Heal()
		waitLog(f.t, f.o.Log, "kv tier: on", 1)
		f.says(s, 1)
		s.Kill()
		f.comesBack(2).Kill()
	}
}

// isSlow: reading the pages takes seconds.
func (f *failing) isSlow() {
	disk, err := mounts.NewThrottled(f.t.TempDir(), f.t.TempDir())
	if err != nil {
		f.t.Skip(err)
	}
	f.t.Cleanup(func() { require.NoError(f.t, disk.Close()) })
	f.o.Root = filepath.Join(disk.Dir, "pages")
	f.store()
	f.o.Env = append(f.o.Env, "OLLAMA_KV_TIER_TEST=0")
	s := start(f.t, f.o)
	require.NoError(f.t, disk.Limit(100_000))
	for turn := range f.turns {
		f.says(s, turn)
	}
	require.NoError(f.t, disk.Limit(0))
	s.Kill()
	f.comesBack(1).Kill()
}

// hangs: the disk of the pages and the log hangs while the server runs. One request waits for it.
func (f *failing) hangs() {
	mount := f.mounted()
	f.o.Log = filepath.Join(mount.Dir, "log")
	f.store()
	s := start(f.t, f.o)
	defer mount.Heal()
	stalled := mount.Stall(mounts.AllOps...)
	waited := time.Now()
	require.Zero(f.t, f.says(s, 1))
	<-stalled
	first := time.Since(waited)
	const others = 4
	for i := range others {
		s.complete(someTokens(20+i, 300), 1)
	}
	require.Less(f.t, time.Since(waited)-first, others*5*time.Second, "each waits")
	s.Kill()
	mount.Heal()
	f.comesBack(1).Kill()
	waitLog(f.t, f.o.Log, "cause=disk_hangs", 1)
}

// filled is a request for the answer of a turn with n more bytes.
func (f *failing) filled(turn, n int) []byte {
	in, err := json.Marshal(map[string]any{"prompt": f.turns[turn].prompt, "n_predict": 12, "temperature": 0, "seed": 1, "n_probs": 3, "return_tokens": true})
	require.NoError(f.t, err)
	return slices.Concat(in[:len(in)-1], []byte(`,"more":"`), bytes.Repeat([]byte("x"), n), []byte(`"}`))
}

// largeRequests: one that is too large, and several that are together.
func (f *failing) largeRequests() {
	const large, most = 60 << 20, 64 << 20
	f.store()
	s := start(f.t, f.o)
	ask := func(body io.Reader, n int) {
		req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, s.URL+"/completion", body)
		require.NoError(f.t, err)
		req.ContentLength = int64(n)
		req.Header.Set("Content-Type", "application/json")
		res, err := llamatest.Client.Do(req)
		require.NoError(f.t, err)
		defer res.Body.Close()
		require.Equal(f.t, http.StatusOK, res.StatusCode)
		var got answer
		require.NoError(f.t, json.NewDecoder(res.Body).Decode(&got))
		requireSame(f.t, f.turns[1].answer, got, 0)
	}
	passed := func() int {
		log, err := os.ReadFile(f.o.Log)
		require.NoError(f.t, err)
		return strings.Count(string(log), "it is large, or many are")
	}
	in := f.filled(1, most)
	ask(bytes.NewReader(in), len(in))
	require.Equal(f.t, 1, passed())

	in = f.filled(1, large)
	var held sync.WaitGroup
	var rest []*io.PipeWriter
	for range 2 {
		read, write := io.Pipe()
		held.Add(1)
		go func() {
			defer held.Done()
			ask(read, len(in))
		}()
		_, err := write.Write(in[:large]) // more than the connection holds: it is being read
		require.NoError(f.t, err)
		rest = append(rest, write)
	}
	ask(bytes.NewReader(in), len(in))
	require.Equal(f.t, 2, passed())
	for _, write := range rest {
		_, err := write.Write(in[large:])
		require.NoError(f.t, err)
		require.NoError(f.t, write.Close())
	}
	held.Wait()
	require.Equal(f.t, 2, passed())
	s.Kill()
	f.comesBack(1).Kill()
}

// anotherAPI: the slot is saved before a request of which nothing is known takes it, and a prompt beside
// such a request passes.
func (f *failing) anotherAPI() {
	s := start(f.t, f.o)
	require.Zero(f.t, f.says(s, 0))
	several := map[string]any{"prompt": [][]int32{someTokens(5, 100), someTokens(6, 100)}, "n_predict": 200, "stream": true}
	body, err := s.Post(f.t.Context(), "/completion", several)
	require.NoError(f.t, err)
	defer body.Close()
	_, err = io.ReadFull(body, make([]byte, 1))
	require.NoError(f.t, err)
	f.says(s, 1)
	_, err = io.Copy(io.Discard, body)
	require.NoError(f.t, err)
	s.killEngine()
	f.comesBack(1).Kill()
}

// killedEngine: the client sees the end of the connection, and Ollama that of the engine.
func (f *failing) killedEngine() {
	f.store()
	s := f.comesBack(1)
	body, err := s.Post(f.t.Context(), "/completion", map[string]any{"prompt": someTokens(5, 100), "n_predict": 2000, "stream": true, "ignore_eos": true})
	require.NoError(f.t, err)
	defer body.Close()
	_, err = io.ReadFull(body, make([]byte, 1))
	require.NoError(f.t, err)
	s.killEngine()
	_, err = io.Copy(io.Discard, body)
	require.Error(f.t, err)
	require.Equal(f.t, syscall.SIGKILL, s.Wait().Signal())
	f.comesBack(1).Kill()
}

// alone requires that the real server runs alone, and says why.
func (f *failing) alone(s *server, why string) {
	f.t.Helper()
	all, err := s.Processes()
	require.NoError(f.t, err)
	require.Len(f.t, all, 1)
	waitLog(f.t, f.o.Log, why, 1)
	require.Zero(f.t, f.says(s, 0))
	s.Kill()
}

// refusedOptions: an older llama-server does not know an option of ours.
func (f *failing) refusedOptions() {
	f.store()
	older := filepath.Join(f.t.TempDir(), "llama-server")
	real := filepath.Join(tree(f.t), "lib", "ollama", "llama-server-real")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' --slot-save-path '*) exit 1 ;; esac\nexec %q \"$@\"\n", real)
	require.NoError(f.t, os.WriteFile(older, []byte(script), 0o700))
	newer := f.o.Env
	f.o.Env = append(newer, "KVTIER_LLAMA_SERVER="+older)
	f.alone(start(f.t, f.o), "llama-server ended before it listened")
	f.o.Env = newer
	f.comesBack(1).Kill()
}

// killedDaemons: the engine dies with each, the next one removes its folder, and after three of them there
// is none for an hour.
func (f *failing) killedDaemons() {
	f.store()
	temporary := shortDir(f.t)
	f.o.Env = append(f.o.Env, "TMPDIR="+temporary)
	var left []string
	for range 3 {
		s := f.comesBack(1)
		require.Eventually(f.t, func() bool {
			now := f.folders(temporary)
			return !slices.ContainsFunc(left, func(folder string) bool { return slices.Contains(now, folder) })
		}, startMax, 5*time.Millisecond)
		all, err := s.Processes()
		require.NoError(f.t, err)
		require.NoError(f.t, unix.Kill(all[1], unix.SIGKILL))
		require.Equal(f.t, syscall.SIGKILL, s.Wait().Signal())
		gone(f.t, all)
		left = f.folders(temporary)
		require.Len(f.t, left, 2)
	}
	f.alone(start(f.t, f.o), "died 3 times")
	require.NoError(f.t, os.Remove(filepath.Join(f.o.Root, "llama-server.json"))) // an hour later
	f.comesBack(1).Kill()
}

// folders are those of daemons, in some directories and beside the pages.
func (f *failing) folders(in ...string) (all []string) {
	for _, parent := range append(in, filepath.Join(f.o.Root, "llama-server")) {
		found, err := filepath.Glob(filepath.Join(parent, "kvtier-llama-*"))
		require.NoError(f.t, err)
		all = append(all, found...)
	}
	return all
}

// shortDir is a directory whose path may hold that of a socket.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "kvtier")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// hungTemporaryDirectory is where the engine's socket would be.
func (f *failing) hungTemporaryDirectory() {
	f.store()
	mount := mounts.NewPassthrough(f.t, f.t.TempDir())
	f.o.Env = append(f.o.Env, "TMPDIR="+mount.Dir)
	defer mount.Heal()
	stalled := mount.Stall(mounts.AllOps...)
	s := f.comesBack(1)
	<-stalled
	all, err := s.Processes()
	require.NoError(f.t, err)
	waitLog(f.t, f.o.Log, "the temporary directory does not answer", 1)
	s.Kill()
	mount.Heal()
	gone(f.t, all)
	f.comesBack(2).Kill()
	require.Eventually(f.t, func() bool { return len(f.folders(mount.Dir, "/dev/shm")) == 0 }, startMax, 5*time.Millisecond)
}
