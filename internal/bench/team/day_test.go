package team

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/progress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pages is a budget for some pages.
func pages(n int64) int64 { return n * Alone.blockBytes() }

func run(t *testing.T, d Day, requests []trace.Request) Row {
	t.Helper()
	row, err := d.Run(t.Context(), requests)
	require.NoError(t, err)
	require.InDelta(t, row.Given, row.Local+row.Remote, 1e-12)
	require.LessOrEqual(t, row.Given, best(requests)+1e-12)
	return row
}

// someRequests are a part of a synthetic day.
func someRequests(t *testing.T) []trace.Request {
	t.Setenv(TracesEnv, "")
	requests, from, err := Trace(128)
	require.NoError(t, err)
	require.Contains(t, from, "random numbers")
	require.Greater(t, best(requests), 0.2)
	return requests
}

// TestWithRoomForAll: one server gives back what it can, and so do many with an engine, to which each page
// goes once. An engine alone gives back more than none where a conversation goes to any server.
func TestWithRoomForAll(t *testing.T) {
	requests, different := someRequests(t), make(map[int32]bool)
	for _, r := range requests {
		for _, block := range r.Whole() {
			different[block] = true
		}
	}
	alone := Alone
	alone.Boxes, alone.LocalBytes = 1, 1e15
	row := run(t, alone, requests)
	require.InDelta(t, best(requests), row.Given, 1e-12)
	require.Zero(t, row.BytesTo+row.BytesFrom)
	require.Zero(t, row.Requests)
	require.Less(t, row.P50, row.ComputedP50)

	alone.Boxes = 8
	engine := alone
	engine.Name, engine.Link, engine.EngineBytes, engine.ThroughBytes = "engine", Link{BytesPerSecond: 1.25e9, RoundTrip: 0.5e-3}, 1e15, 1e15
	apart, shared := run(t, alone, requests), run(t, engine, requests)
	require.InDelta(t, best(requests), shared.Given, 1e-12)
	require.Less(t, apart.Given, shared.Given)
	require.Equal(t, pages(int64(len(different))), shared.BytesTo)
	require.GreaterOrEqual(t, float64(shared.BytesFrom), shared.Remote*float64(tokens(requests))*float64(Alone.TokenBytes)-1)

	engine.BytesPerSecond = 1e6
	slow := run(t, engine, requests)
	require.InDelta(t, apart.Given, slow.Given, 0.01, "nothing is fetched over a slow link")
}

// TestADayIsTheSameAgain, also where pages have to leave a server and the engine.
func TestADayIsTheSameAgain(t *testing.T) {
	requests := someRequests(t)
	d := Alone
	d.Name, d.Boxes, d.LocalBytes, d.Link = "engine", 3, pages(300), Link{BytesPerSecond: 1.25e9, RoundTrip: 0.5e-3}
	d.EngineBytes, d.ThroughBytes = pages(450), pages(350)
	row := run(t, d, requests)
	require.Equal(t, row, run(t, d, requests))
	require.Positive(t, row.Remote)
	require.Less(t, row.Given, best(requests))
	d.Files, d.ThroughBytes = true, 0
	require.Positive(t, run(t, d, requests).BytesTo, "pages that leave a server move to the directory")
}

// TestAQuickReport has a row, and says where its requests are from.
func TestAQuickReport(t *testing.T) {
	t.Setenv(TracesEnv, "")
	steps := progress.New(io.Discard, show.StepNames)
	defer steps.Close()
	r, err := Measure(t.Context(), show.Steps{Display: steps}, true)
	require.NoError(t, err)
	require.Contains(t, r.Trace, "random numbers")
	require.Len(t, r.Days, 1)
	require.NotZero(t, r.Days[0].P99)
}

// TestTrace reads a file of the form that the environment variable names.
func TestTrace(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(TracesEnv, folder)
	_, _, err := Trace(1)
	require.ErrorIs(t, err, os.ErrNotExist)
	write := func(text string) {
		file, err := os.Create(filepath.Join(folder, TraceFile))
		require.NoError(t, err)
		packed := gzip.NewWriter(file)
		_, err = io.WriteString(packed, text)
		require.NoError(t, err)
		require.NoError(t, packed.Close())
		require.NoError(t, file.Close())
	}
	write(`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 40, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}
`)
	requests, from, err := Trace(1)
	require.NoError(t, err)
	require.Contains(t, from, TraceFile)
	require.Equal(t, []trace.Request{{Tokens: 600, Blocks: []int32{0, 1}}, {At: daySeconds, Tokens: 1024, Blocks: []int32{0, 1}}}, requests)
	require.Equal(t, []int32{0}, requests[0].Whole())
	require.InDelta(t, 512.0/1624, best(requests), 1e-12)
	for _, text := range []string{"", "{", `{"timestamp": 0}`} {
		write(text)
		_, _, err = Trace(1)
		require.ErrorContains(t, err, TraceFile)
	}
}
