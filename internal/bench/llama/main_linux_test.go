package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/measure"
)

func TestParse(t *testing.T) {
	s, err := parse([]string{"-only", "hot,ttft", "-sizes", "256,512"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{256, 512}, s.sizes)
	require.Equal(t, []string{"hot", "ttft"}, s.only)
	for _, args := range [][]string{
		{"-only", "none"}, {"-sizes", "x"}, {"-sizes", "255"}, {"-sizes", "1000000"}, {"-n", "0"}, {"-turns", "0"},
		{"-conversations", "0"}, {"-length", "255"}, {"-length", "1000000"}, {"-unknown"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
}

func TestNewFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, n int) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, n), 0o600))
	}
	n := newFiles{dirs: []string{dir, filepath.Join(dir, "none")}}
	write("a", 10)
	require.NoError(t, n.look(false))
	write("b", 5)
	require.NoError(t, n.look(false))
	require.EqualValues(t, 15, n.bytes)
	require.NoError(t, n.look(true))
	require.EqualValues(t, 30, n.bytes)
}

func TestPrint(t *testing.T) {
	series := func(values ...float64) (s measure.Series) {
		for _, v := range values {
			s.Add(v)
		}
		return s
	}
	r := report{Parts: map[string]any{
		"ttft": &ttft{Points: []point{{Tokens: 4096, Reused: 4096, Cold: series(2), Stock: series(2), Whole: series(2), Ours: series(2, 1), Speedup: 4. / 3}}},
		"chat": &chat{Turns: 20, TokensPerTurn: 300, Loaded: written{1, 1.02}, Unloaded: written{10.5, 1.4}},
		"switch": &switches{
			Conversations: 8, Tokens: 8192, Reading: 0.01,
			Stock: switching{First: series(0.1)}, RAM: switching{First: series(0.1)}, Ours: switching{First: series(0.1), Memory: 5e8},
		},
		"hot": &hot{Added: series(0.0005), Text: series(1.01), Speed: series(0.995)},
	}}
	var out bytes.Buffer
	r.print(&out)
	require.Equal(t, `
PROMPT TOKENS    4,096
reused           4,096
cold             2.00 s
stock            2.00 s
whole slot       2.00 s
ours             1.50 s (1.00 s–2.00 s)
speedup          1.333

CHAT
turns              20
tokens per turn    300

                            WHOLE SLOT    OURS
model stays loaded          1             1.02
unloaded after each turn    10.5          1.4

SWITCH
conversations        8
tokens               8,192
reading the pages    10.0 ms

             FIRST TOKEN    REUSED    MEMORY
stock        100 ms         0         0 B
cache-ram    100 ms         0         0 B
ours         100 ms         0         500 MB

HOT
prompt tokens    0
answer tokens    0
added            500 µs
text             1.01
speed            0.995
`, out.String())
}
