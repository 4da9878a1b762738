// Package testrows makes the tokens and rows for tests of the store and measures the memory
// that reading takes.
package testrows

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
)

// Prompt returns n tokens; prompts of different seeds differ from the first token on.
func Prompt(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(seed*1_000_000 + i)
	}
	return tokens
}

// Fill fills the sections of a page with bytes derived from the key alone, so that a reader of
// the page can check them. Every other section compresses well.
func Fill(key [32]byte, sections [][]byte) {
	h := fnv.New64a()
	h.Write(key[:])
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	for i, rows := range sections {
		for at := 0; at < len(rows); at += 8 {
			var word [8]byte
			if i%2 == 0 {
				binary.LittleEndian.PutUint64(word[:], rng.Uint64())
			} else {
				word[0] = key[0]
			}
			copy(rows[at:], word[:])
		}
	}
}

// Allocated returns the number of bytes that fn allocates, freed or not.
func Allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
