package collect

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// wordsReport is a report whose Words begin with a token.
func wordsReport(pid int, namespace string, token int32) *telemetry.Report {
	r := testReport(pid, prompts(1))
	r.Model.Namespace = namespace
	words := &telemetry.Words{Was: []int32{token}, Is: []int32{token}}
	r.Prompts = []telemetry.Prompt{
		{Seq: 1, Tokens: 1, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: words}},
		{Seq: 2, Tokens: 1, Private: true, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: words}},
	}
	r.Busters = []telemetry.Buster{{Begin: 1, End: 2, Words: words}}
	return r
}

// client returns a client of a root's collector.
func client(t *testing.T, root string) *http.Client {
	c := newClient(func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, filepath.Join(root, directoryName), true)
	})
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func post(t *testing.T, c *http.Client, path string, data []byte) (status int, text string) {
	t.Helper()
	answer, err := c.Post(address(path), "application/json", bytes.NewReader(data))
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(body)
}

func get(t *testing.T, c *http.Client, path string) (status int, text string) {
	t.Helper()
	answer, err := c.Get(address(path))
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(body)
}

// Words are shown for the namespace that is asked for, never in the state, and never those of
// private prompts.
func TestWordsAreShownToTheirNamespace(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	c := client(t, root)
	tokens := map[string]int32{"": 111111, "team": 222222, "team ": 333333}
	pid := 0
	for namespace, token := range tokens {
		pid++
		status, text := post(t, c, reportPath, encoded(t, wordsReport(pid, namespace, token)))
		require.Equal(t, http.StatusNoContent, status, text)
	}
	const notThere = "other"
	for _, asked := range []string{"", "team", "team ", notThere} {
		s, err := ReadWords(t.Context(), root, asked)
		require.NoError(t, err)
		require.Len(t, s.Prompts, 6)
		require.Len(t, s.Processes, 3)
		for _, p := range s.Prompts {
			want := p.Namespace == asked && !p.Private
			require.Equal(t, want, p.Miss.Words != nil)
			if want {
				require.Equal(t, tokens[asked], p.Miss.Words.Is[0])
			}
		}
		for _, p := range s.Processes {
			require.Equal(t, p.Model.Namespace == asked, p.Busters[0].Words != nil)
		}
	}
	for path, not := range map[string][]string{
		statePath: {"111111", "222222", "333333", "words"}, wordsPath + "?namespace=team": {"111111", "333333"},
		wordsPath + "?namespace=" + notThere: {"111111", "222222", "333333"},
	} {
		status, text := get(t, c, path)
		require.Equal(t, http.StatusOK, status)
		for _, text2 := range not {
			require.NotContains(t, text, text2, path)
		}
	}
	status, _ := get(t, c, wordsPath)
	require.Equal(t, http.StatusBadRequest, status, "no namespace was named")
}

func TestRequestsThatAreRefused(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	c := client(t, root)
	for _, text := range []string{"", "{", `{"version":7}`} {
		status, _ := post(t, c, reportPath, []byte(text))
		require.Equal(t, http.StatusBadRequest, status)
	}
	status, _ := post(t, c, reportPath, bytes.Repeat([]byte(" "), telemetry.ReportBytesMax+1))
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
	for _, path := range []string{"/", "/v1", reportPath, "/v1/state/x", "/debug/pprof"} {
		status, _ := get(t, c, path)
		require.NotEqual(t, http.StatusOK, status, path)
	}
	require.Empty(t, readState(t, root).Models)
}

// Bytes that are no HTTP, and requests that never end, keep nobody out.
func TestHostileConnections(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	var open []net.Conn
	for _, text := range []string{
		"", "\x16\x03\x01", strings.Repeat("x", 100_000), "GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 10_000),
		"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{",
		"POST /v1/report HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		conn, err := dial(t.Context(), filepath.Join(root, directoryName), false)
		require.NoError(t, err)
		open = append(open, conn)
		_, _ = conn.Write([]byte(text)) // it may be closed before
	}
	require.True(t, readState(t, root).Live)
	for _, conn := range open {
		conn.Close()
	}
}

// A flood of connections fills a bounded number of places, and is over when they are closed.
func TestFloodOfConnections(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	var open []net.Conn
	closed := 0
	for range 2 * connectionsMax {
		conn, err := dial(t.Context(), filepath.Join(root, directoryName), false)
		if err != nil {
			closed++ // the system's queue is full
			continue
		}
		open = append(open, conn)
	}
	// Each of those beyond the bound is closed by the collector.
	ended := make(chan struct{}, len(open))
	for _, conn := range open {
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			ended <- struct{}{}
		}()
	}
	for range len(open) - connectionsMax {
		<-ended
		closed++
	}
	require.GreaterOrEqual(t, closed, connectionsMax)
	for _, conn := range open {
		conn.Close()
	}
	await(t, "a connection", func() bool { s, err := Read(context.Background(), root); return err == nil && s.Live })
}

// Many readers share writes: their number is bounded by the rounds, not by the readers.
func TestFloodOfReadersAndReports(t *testing.T) {
	root := newRoot(t)
	var injected *vfs.Injector
	collector(t, root, func(o *Options) { o.fs = injecting(&injected, filepath.Join(root, directoryName)) })
	var all sync.WaitGroup
	for pid := 1; pid <= 16; pid++ {
		all.Add(2)
		go func() {
			defer all.Done()
			c := client(t, root)
			for n := range 30 {
				post(t, c, reportPath, encoded(t, testReport(pid, prompts(float64(n+1)))))
			}
		}()
		go func() {
			defer all.Done()
			last := 0.0
			for range 30 {
				s, err := Read(context.Background(), root)
				if err != nil {
					t.Error(err)
					return
				}
				if now := total(s, promptsTotal); now < last {
					t.Error("a total fell")
				} else {
					last = now
				}
			}
		}()
	}
	all.Wait()
	require.Equal(t, 16.0*30, total(readState(t, root), promptsTotal))

	gate := vfs.NewGate()
	injected.Reset()
	injected.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Gate: gate, Nth: 1})
	require.Equal(t, http.StatusNoContent, func() int {
		status, _ := post(t, client(t, root), reportPath, encoded(t, testReport(1, prompts(31))))
		return status
	}())
	results := make(chan float64, 100)
	read := func() {
		s, err := Read(context.Background(), root)
		if err != nil {
			t.Error(err)
		}
		results <- total(s, promptsTotal)
	}
	go read()
	<-gate.Entered() // it writes; all others wait for the next round, or come later
	for range 50 {
		go read()
	}
	gate.Open()
	for range 51 {
		require.Equal(t, 16.0*30+1, <-results)
	}
	require.Equal(t, 1, injected.Count(vfs.OpWrite), "nothing changed after it")
}

// injecting injects faults into the filesystem of a directory.
func injecting(injected **vfs.Injector, of string) func(dir string) vfs.FS {
	*injected = vfs.Inject(vfs.Below(of))
	return func(dir string) vfs.FS {
		if dir == of {
			return *injected
		}
		return vfs.Below(dir)
	}
}

// A disk that is full: the state is answered nevertheless, the file keeps its content, and is
// written when there is room.
func TestFullDisk(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpClose, vfs.OpRename} {
		root := newRoot(t)
		var injected *vfs.Injector
		c := collector(t, root, func(o *Options) {
			o.fs = injecting(&injected, filepath.Join(root, directoryName))
		})
		h := client(t, root)
		post(t, h, reportPath, encoded(t, testReport(1, prompts(1))))
		require.Equal(t, 1.0, total(readState(t, root), promptsTotal))
		injected.Add(vfs.Rule{Ops: []vfs.Op{op}, Err: errNoSpace, Short: 7})
		post(t, h, reportPath, encoded(t, testReport(1, prompts(2))))
		s := readState(t, root)
		require.True(t, s.Live)
		require.Equal(t, 2.0, total(s, promptsTotal))
		status, text := post(t, h, reportPath+"?last=1", encoded(t, testReport(1, prompts(3))))
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, text, fileName)
		file, err := readFile(filepath.Join(root, directoryName))
		require.NoError(t, err)
		require.Equal(t, 1.0, total(file, promptsTotal))
		injected.Reset()
		require.NoError(t, c.stop())
		require.Equal(t, 3.0, total(readState(t, root), promptsTotal), op)
	}
}

// A disk that hangs: readers and reports go on after a bounded wait, and the lock is kept until
// the write is over, so that it replaces no later file.
func TestDiskThatHangs(t *testing.T) {
	root := newRoot(t)
	var injected *vfs.Injector
	c := collector(t, root, func(o *Options) {
		o.fs, o.Intervals.Disk = injecting(&injected, filepath.Join(root, directoryName)), 50*time.Millisecond
	})
	h := client(t, root)
	post(t, h, reportPath, encoded(t, testReport(1, prompts(1))))
	require.True(t, readState(t, root).Live)
	gate := vfs.NewGate()
	injected.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite, vfs.OpRename}, Gate: gate})
	for n := 2.0; n < 20; n++ {
		status, _ := post(t, h, reportPath, encoded(t, testReport(1, prompts(n))))
		require.Equal(t, http.StatusNoContent, status)
		s := readState(t, root)
		require.True(t, s.Live)
		require.Equal(t, n, total(s, promptsTotal))
	}
	require.NoError(t, c.stop(), "it ends in time")
	p, err := newPlace(root, Options{Intervals: quick}.withDefaults())
	require.NoError(t, err)
	_, err = p.lock()
	require.ErrorIs(t, err, vfs.ErrLocked)
	gate.Open()
	await(t, "the lock", func() bool {
		lock, err := p.lock()
		if err == nil {
			lock.Close()
		}
		return err == nil
	})
	written := total(readState(t, root), promptsTotal)
	require.True(t, written >= 1 && written < 19, "%v: nothing was written after the write that hung", written)
}

// A file that cannot be read for now is left alone: the collector waits for its disk.
func TestAFileThatCannotBeReadForNow(t *testing.T) {
	root := newRoot(t)
	c := collector(t, root)
	post(t, client(t, root), reportPath, encoded(t, testReport(1, prompts(1))))
	require.NoError(t, c.stop())
	var injected *vfs.Injector
	fsys := injecting(&injected, filepath.Join(root, directoryName))
	injected.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: io.ErrUnexpectedEOF})
	serves := make(chan struct{}, 1)
	startServe(t, root, func(o *Options) { o.fs, o.OnServe = fsys, func() { serves <- struct{}{} } })
	await(t, "attempts", func() bool { return injected.Count(vfs.OpRead) > 3 })
	injected.Reset()
	<-serves
	require.Equal(t, 1.0, total(readState(t, root), promptsTotal))
}

// A collector that accepts and never answers is not waited for: the file has all that it has
// shown. A reader that gives up gets no state.
func TestReadersOfACollectorThatHangs(t *testing.T) {
	root := newRoot(t)
	c := collector(t, root)
	post(t, client(t, root), reportPath, encoded(t, testReport(1, prompts(1))))
	require.NoError(t, c.stop())
	l, err := listen(filepath.Join(root, directoryName))
	require.NoError(t, err)
	defer l.Close()
	s := readState(t, root)
	require.False(t, s.Live)
	require.Equal(t, 1.0, total(s, promptsTotal))
	_, err = ReadWords(t.Context(), root, "")
	require.ErrorIs(t, err, ErrNoCollector)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = Read(ended, root)
	require.ErrorIs(t, err, context.Canceled)
}

// A heartbeat without growth writes nothing.
func TestAStateThatDoesNotGrowIsNotWritten(t *testing.T) {
	root := newRoot(t)
	var injected *vfs.Injector
	collector(t, root, func(o *Options) { o.fs = injecting(&injected, filepath.Join(root, directoryName)) })
	h := client(t, root)
	r := testReport(1, prompts(1))
	post(t, h, reportPath, encoded(t, r))
	require.Len(t, readState(t, root).Processes, 1)
	injected.Reset()
	for n := range 10 {
		r.Gauges = map[string]float64{"ollama_kv_queue_pages": float64(n)}
		post(t, h, reportPath, encoded(t, r))
		require.Equal(t, r.Gauges, readState(t, root).Processes[0].Gauges)
	}
	require.Zero(t, injected.Count(vfs.OpWrite))
}
