package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

func TestMedian(t *testing.T) {
	require.Zero(t, measure.Median(nil))
	require.Equal(t, 3.0, measure.Median([]float64{3}))
	require.Equal(t, 2.5, measure.Median([]float64{4, 1, 3, 2}))
	values := []float64{9, 1, 5}
	require.Equal(t, 5.0, measure.Median(values))
	require.Equal(t, []float64{9, 1, 5}, values, "the order of measurement is kept")
}

func TestSeries(t *testing.T) {
	var s measure.Series
	s.AddSeconds(3 * time.Second)
	s.Add(1)
	s.Add(2)
	require.Equal(t, measure.Series{Median: 2, Min: 1, Max: 3, Values: []float64{3, 1, 2}}, s)
}

func TestSideBySide(t *testing.T) {
	var s measure.SideBySide
	s.Add(100, 99)
	s.Add(200, 204)
	var order []string
	side := func(name string, value float64) func() (float64, error) {
		return func() (float64, error) { order = append(order, name); return value, nil }
	}
	require.NoError(t, s.Measure(side("off", 100), side("on", 98)))
	require.NoError(t, (&measure.SideBySide{Ratio: measure.Series{Values: []float64{1}}}).Measure(side("off", 1), side("on", 1)))
	require.Equal(t, []string{"off", "on", "on", "off"}, order)
	require.InDelta(t, 0.99, s.Ratio.Median, 1e-9)
	require.Equal(t, 100.0, s.Off.Median)
	require.Equal(t, 99.0, s.On.Median)
}

func TestSpeed(t *testing.T) {
	var a lab.Answer
	a.TTFT, a.LoadDuration, a.Total = 3*time.Second, time.Second, 5*time.Second
	a.PromptEvalCount, a.EvalCount = 1000, 101
	require.Equal(t, 500.0, prefillSpeed(a))
	require.Equal(t, 50.0, decodeSpeed(a))
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(small, make([]byte, 5), 0o600))
	require.NoError(t, os.WriteFile(large, make([]byte, measure.ReadBuffer+1), 0o600))
	r, err := measure.ReadFiles([]string{small, large}, 2, measure.ReadBuffer)
	require.NoError(t, err)
	require.EqualValues(t, measure.ReadBuffer+6, r.Bytes)
	require.Positive(t, r.Took)

	_, err = measure.ReadFiles([]string{filepath.Join(dir, "none")}, 1, 1)
	require.ErrorContains(t, err, "reading a page file as dd would")
}

func TestParse(t *testing.T) {
	t.Setenv(stockEnv, "")
	s, err := parse([]string{"-only", "cost,slots", "-sizes", "512,1024"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"cost", "slots"}, s.only)
	require.Equal(t, []int{512, 1024}, s.sizes)
	small := s.shape.Parameters()
	s, err = parse([]string{"-model", "1b"}, io.Discard)
	require.NoError(t, err)
	require.Greater(t, s.shape.Parameters(), 10*small)

	for args, want := range map[string][]string{
		`-only ttfb: there is no benchmark "ttfb", only ttft, chat, cost, restore, slots, warm, remote, moved, near, paged, elastic, store, team, evict`: {"-only", "ttfb"},
		`-sizes 1,x: "1" is not a number of tokens from 2 to 262144`:                                                                                     {"-sizes", "1,x"},
		"-model 7b: there is no such model, only small, 1b and 8b-kv":                                                                                    {"-model", "7b"},
		"-n 0, -pairs 15: at least one repetition is needed":                                                                                             {"-n", "0"},
		`unexpected argument "all"; every setting is a flag, but for the trace of -only evict, see -help`:                                                {"all"},
		`unexpected argument "b"; every setting is a flag, but for the trace of -only evict, see -help`:                                                  {"-only", "evict", "a", "b"},
	} {
		_, err := parse(want, io.Discard)
		require.EqualError(t, err, args)
	}
	_, err = parse([]string{"-stock", filepath.Join(t.TempDir(), "none")}, io.Discard)
	require.ErrorContains(t, err, "looking for the unpatched Ollama")
	_, err = parse([]string{"-help"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}

// sample is a report with round figures.
func sample() *Report {
	series := func(values ...float64) measure.Series {
		var s measure.Series
		for _, v := range values {
			s.Add(v)
		}
		return s
	}
	uncached := series(0.125)
	return &Report{
		Schema:   schema,
		Machine:  measure.Machine{OS: "linux", Arch: "amd64", CPU: "Example 1", Cores: 2, MemoryBytes: 8 << 30, Kernel: "6.1", Filesystem: "ext4"},
		Versions: Versions{Kvtier: "0.16.1+kvtier.0.1.0", Stock: "0.16.1", Go: "go1.24"},
		Settings: Settings{Model: "qwen3", KVBytesPerToken: 8192, NumCtx: 9216, PageTokens: 256, Slots: 1, Repetitions: 3, Pairs: 1},
		TTFT: &TTFT{
			Fixed: series(0.006), FixedBatch: series(0.004),
			Points: []Point{{
				Tokens: 8192, Stock: series(29, 31, 30), Cold: series(33), SameSlot: series(0.02), Restored: series(0.1),
				RestoredUncached: &uncached, RestoredTokens: 8191, Speedup: 300, SpeedupCold: 330,
				Took: series(0.05), Batch: series(0.03), Outside: series(0.02), SameSlotBatch: series(0.01), PlainRead: series(0.025),
			}},
		},
		Cost: &Cost{PromptTokens: 4096, DecodePrompt: 64, AnswerTokens: 256, Prefill: measure.SideBySide{Off: series(300), On: series(297), Ratio: series(0.99)}},
		Remote: &Remote{Tokens: 4096, Points: []RemotePoint{{
			BytesPerSecond: 1e7, Decided: series(4.1), DecidedTokens: 0, Unknown: series(4.3), Restored: series(6), RestoredTokens: 4095,
			Computed: series(4, 4.2, 3.9), Ratio: 1.025,
		}}},
		Restore: &Restore{Tokens: 8192, Files: 32, Bytes: 67e6, Cached: Bandwidth{Restore: series(1.5e9), Read: series(3e9), Ratio: 0.5}},
	}
}

func TestReportRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench", "cpu.json")
	want := sample()
	require.NoError(t, show.Save(path, want))
	got, err := load(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)

	want.Schema = schema + 1
	require.NoError(t, show.Save(path, want))
	_, err = load(path)
	require.ErrorContains(t, err, "it has schema 2, this command reads 1")
}

func TestKeep(t *testing.T) {
	whole := sample()
	part := sample()
	part.TTFT, part.Remote, part.Versions.Stock = nil, nil, ""
	part.Machine.BusyBefore = 0.3
	part.keep(whole)
	require.Same(t, whole.TTFT, part.TTFT)
	require.Same(t, whole.Remote, part.Remote)
	require.NotSame(t, whole.Cost, part.Cost)
	require.Equal(t, "0.16.1", part.Versions.Stock)

	other := sample()
	other.TTFT, other.Settings.NumCtx = nil, 1024
	other.keep(whole)
	require.Nil(t, other.TTFT, "it was measured with other settings")

	alone := sample() // store fits any Ollama
	alone.TTFT, alone.Cost, alone.Versions, alone.Store = nil, nil, Versions{Go: "go1.24"}, &Store{Pages: 32}
	alone.keep(whole)
	require.Same(t, whole.TTFT, alone.TTFT)
	require.Equal(t, whole.Versions.Kvtier, alone.Versions.Kvtier)
	again := sample()
	again.keep(alone)
	require.Same(t, alone.Store, again.Store)
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	sample().print(&out)
	require.Equal(t, `machine   Example 1, 2 cores, 8 GiB, linux 6.1, ext4
ollama    0.16.1+kvtier.0.1.0; stock: 0.16.1, unpatched
model     qwen3; 8,192 bytes of K/V per token
settings  context 9,216, pages of 256 tokens, 1 slot; median (smallest–largest)

TTFT
fixed                       6.00 ms
fixed batch                 4.00 ms
http scheduling sampling    0.00 ms

TOKENS                               8,192
stock                                30.0 s (29.0 s–31.0 s)
cold                                 33.0 s
same slot                            20.0 ms
restored                             100 ms
restored uncached                    125 ms
restored tokens                      8,191
speedup                              300
speedup cold                         330
restored took                        50.0 ms
restored batch                       30.0 ms
restored outside                     20.0 ms
same slot batch                      10.0 ms
plain read                           25.0 ms
carrying and tokenizing              0.00 ms
same slot carrying and tokenizing    0.00 ms

COST
prompt tokens           4,096
decode prompt tokens    64
answer tokens           256
decode threads          0

         PREFILL    DECODE
off      300.0/s    0.0/s
on       297.0/s    0.0/s
ratio    0.99       0

RESTORE
tokens     8,192
files      32
bytes      67 MB

           CACHED
restore    1,500 MB/s
read       3,000 MB/s
ratio      0.5

REMOTE
tokens    4,096

BYTES PER SECOND    10 MB/S
decided             4.10 s
decided tokens      0
unknown             4.30 s
restored            6.00 s
restored tokens     4,095
computed            4.00 s (3.90 s–4.20 s)
ratio               1.025
`, out.String())
}

// TestQuick runs all parts against the built Ollama, and leaves no file behind.
func TestQuick(t *testing.T) {
	if _, err := ollamatest.FindBinary(); errors.Is(err, ollamatest.ErrNoBinary) {
		t.Skip(err)
	}
	t.Setenv(stockEnv, "")
	folders := filepath.Join("..", "..", "build", "bench-*")
	before, err := filepath.Glob(folders)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "quick.json")
	var stdout, stderr bytes.Buffer
	require.NoError(t, run(ctx, []string{"-quick", "-o", path}, &stdout, &stderr), &stderr)
	r, err := load(path)
	require.NoError(t, err)
	require.True(t, r.Versions.StockIsPatched)
	require.Contains(t, stdout.String(), "the patched one with the tier off took its place")
	require.Equal(t, quickTokens-1, r.TTFT.Points[0].RestoredTokens)
	require.Positive(t, r.Chat.AtOnce)
	require.Positive(t, r.Cost.Decode.Ratio.Median)
	require.Positive(t, r.Restore.Cached.Ratio)

	var again bytes.Buffer
	require.NoError(t, run(ctx, []string{"-show", path}, &again, io.Discard))
	require.Equal(t, stdout.String(), again.String())

	after, err := filepath.Glob(folders)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestDirAndLog runs as the GPU suite does: outside any checkout, with a folder for all
// files and a file for the output of servers.
func TestDirAndLog(t *testing.T) {
	binary, err := ollamatest.FindBinary()
	if errors.Is(err, ollamatest.ErrNoBinary) {
		t.Skip(err)
	}
	binary, err = filepath.Abs(binary)
	require.NoError(t, err)
	t.Setenv(ollamatest.BinaryEnv, binary)
	t.Setenv(stockEnv, "")
	t.Chdir(t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	require.NoError(t, run(ctx, []string{"-quick", "-only", "chat", "-dir", "pages", "-log", "server.log"}, &stdout, &stderr), &stderr)
	log, err := os.ReadFile("server.log")
	require.NoError(t, err)
	require.Contains(t, string(log), "load_backend")
	left, err := os.ReadDir("pages")
	require.NoError(t, err)
	require.Empty(t, left)
}
