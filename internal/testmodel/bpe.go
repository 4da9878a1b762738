package testmodel

import (
	_ "embed"
	"strings"
	"sync"
)

// commonWords is one lower-case word per line, roughly by frequency.
//
//go:embed words.txt
var commonWords string

// Weights of a word's forms, relative to the plain form after a space.
const (
	weightSpaced      = 10
	weightBare        = 2
	weightCapitalized = 1
)

// wordWeight is the count of the most frequent word; the n-th word has 1/n of it (Zipf).
const wordWeight = 1 << 20

// word is a training word as a list of its present symbols.
type word struct {
	symbols []string
	count   int
}

type symbolPair struct{ left, right string }

// learnedMerges returns every merge that byte-pair encoding finds in the common words, most
// useful first. A vocabulary of n merges has the first n entries.
var learnedMerges = sync.OnceValue(func() []symbolPair {
	words := trainingWords()
	counts := make(map[symbolPair]int)
	for _, w := range words {
		w.countPairs(counts, w.count)
	}
	var merges []symbolPair
	for len(counts) > 0 {
		best := mostFrequent(counts)
		merges = append(merges, best)
		for i := range words {
			if words[i].contains(best) {
				words[i].countPairs(counts, -words[i].count)
				words[i].merge(best)
				words[i].countPairs(counts, words[i].count)
			}
		}
	}
	return merges
})

func trainingWords() []word {
	var words []word
	add := func(text string, count int) {
		symbols := strings.Split(byteLevel(text), "")
		words = append(words, word{symbols: symbols, count: max(count, 1)})
	}
	for rank, text := range Words() {
		count := wordWeight / (rank + 1)
		add(" "+text, count*weightSpaced)
		add(text, count*weightBare)
		add(" "+strings.ToUpper(text[:1])+text[1:], count*weightCapitalized)
	}
	return words
}

// mostFrequent breaks ties by spelling, so that the result is the same each time.
func mostFrequent(counts map[symbolPair]int) symbolPair {
	var best symbolPair
	bestCount := 0
	for pair, count := range counts {
		switch {
		case count < bestCount:
		case count == bestCount && pair.left+" "+pair.right > best.left+" "+best.right:
		default:
			best, bestCount = pair, count
		}
	}
	return best
}

func (w word) contains(pair symbolPair) bool {
	for i := range len(w.symbols) - 1 {
		if w.symbols[i] == pair.left && w.symbols[i+1] == pair.right {
			return true
		}
	}
	return false
}

// countPairs adds count to each pair of w and drops pairs that reach 0.
func (w word) countPairs(counts map[symbolPair]int, count int) {
	for i := range len(w.symbols) - 1 {
		pair := symbolPair{w.symbols[i], w.symbols[i+1]}
		counts[pair] += count
		if counts[pair] == 0 {
			delete(counts, pair)
		}
	}
}

func (w *word) merge(pair symbolPair) {
	merged := w.symbols[:0]
	for i := 0; i < len(w.symbols); i++ {
		if i+1 < len(w.symbols) && w.symbols[i] == pair.left && w.symbols[i+1] == pair.right {
			merged = append(merged, pair.left+pair.right)
			i++
			continue
		}
		merged = append(merged, w.symbols[i])
	}
	w.symbols = merged
}
