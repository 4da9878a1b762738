package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRun has pages of Gaussian f16 rows: 2 layers of K and V, 64 numbers a token.
func testRun(t *testing.T, pages int) *run {
	t.Helper()
	r, err := newRun(Options{Tokens: pages * PageTokens, Scored: PageTokens}, t.TempDir())
	require.NoError(t, err)
	r.fileBytes = 1 << 20 // all files of all rounds have 24 GB else
	var sections []pagefile.Section
	for i := range 4 {
		sections = append(sections, pagefile.Section{Layer: uint16(i / 2), Kind: pagefile.Kind(i % 2), RowBytes: 128})
	}
	layout, err := pagefile.NewLayout(sections, PageTokens)
	require.NoError(t, err)
	r.kept.fingerprint = pagefile.Key{1}
	parent, rng := r.kept.fingerprint, rand.New(rand.NewPCG(1, 2))
	for i := range pages {
		p := pagefile.Page{Parent: parent, Start: uint32(i * PageTokens), Tokens: make([]int32, PageTokens), Layout: layout, Payload: make([]byte, layout.Size())}
		for s := range layout.Len() {
			rows := layout.Rows(p.Payload, s)
			for at := 0; at < len(rows); at += 2 {
				binary.LittleEndian.PutUint16(rows[at:], float16.Fromfloat32(float32(rng.NormFloat64())).Bits())
			}
		}
		r.kept.pages, parent = append(r.kept.pages, p), p.Key()
	}
	return r
}

// results returns the results by the name of the encoding.
func results(r *run) map[string]Result {
	all := map[string]Result{}
	for _, res := range r.results {
		all[res.Encoding] = res
	}
	return all
}

// texts returns n pieces of text.
func texts(n int) (pieces []string) {
	for i := range n {
		pieces = append(pieces, fmt.Sprintf(" w%d", i))
	}
	return pieces
}
