package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
	p := Point{Tokens: 4096, Reused: 4096}
	for _, side := range []*times{&p.Cold, &p.Stock, &p.Whole, &p.Ours} {
		side.Add(2)
	}
	p.Ours.Add(1)
	s := &Switch{Conversations: 8, Tokens: 8192, Reading: 0.01, Ours: Switching{Memory: 5e8}}
	for _, side := range []*Switching{&s.Stock, &s.RAM, &s.Ours} {
		side.First.Add(0.1)
	}
	h := &Hot{}
	h.Added.Add(0.0005)
	h.Speed.Add(0.995)
	r := Report{TTFT: []Point{p}, Chat: &Chat{Turns: 20, TokensPerTurn: 300, WholeLoaded: 1, WholeUnloaded: 10.5, OursLoaded: 1.02, OursUnloaded: 1.4}, Switch: s, Hot: h}
	var out bytes.Buffer
	r.print(&out)
	require.Equal(t, `
Time to first token after kill -9

PROMPT TOKENS    REUSED    COLD      STOCK     WHOLE SLOT    OURS      SPEEDUP
4,096            4,096     2.00 s    2.00 s    2.00 s        1.50 s    1.33×

Bytes written per new byte of K and V, 20 turns of 300 tokens

                            WHOLE SLOT    OURS
model stays loaded          1.00          1.02
unloaded after each turn    10.50         1.40

8 conversations of 8,192 tokens take turns on one slot

                     FIRST TOKEN    MEMORY
stock                100 ms         0 MB
--cache-ram          100 ms         0 MB
ours                 100 ms         500 MB
reading the pages    10.0 ms

A slot that holds the prompt: ours adds 0.50 ms to a request (0.50 ms to 0.50 ms); answers come at 99.5 % of the speed.
`, out.String())
	require.Equal(t, "1.00 s", p.Ours.last())
	require.Empty(t, (&times{}).last())
}
