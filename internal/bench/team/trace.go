package team

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// TracesEnv names a folder with a trace of the Mooncake project, TraceFile.
const (
	TracesEnv = "KVTIER_TRACES"
	TraceFile = "mooncake-conversation-first-half.jsonl.gz"
)

// BlockTokens are the tokens of a block of a trace.
const BlockTokens = 512

// daySeconds are those over which the requests of a trace are spread.
const daySeconds = 24 * 3600

// Request is a prompt. Prompts with the same block have the same text up to the end of that block.
type Request struct {
	At     float64 `json:"timestamp"` // seconds since the day began
	Tokens int     `json:"input_length"`
	Blocks []int32 `json:"hash_ids"` // the last one may be shorter
}

// whole returns the blocks that are stored.
func (r Request) whole() []int32 { return r.Blocks[:min(len(r.Blocks), r.Tokens/BlockTokens)] }

// stickyBlocks tell a conversation: more than the one with which all prompts of a service begin.
const stickyBlocks = 2

// conversation is a hash of a prompt's beginning.
func (r Request) conversation() uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, r.Blocks[:min(stickyBlocks, len(r.Blocks))]) // a hash takes all bytes
	return h.Sum64()
}

// known returns the blocks that can be given back: the last token of a prompt is computed.
func (r Request) known() []int32 { return r.Blocks[:min(len(r.Blocks), (r.Tokens-1)/BlockTokens)] }

// Trace returns the requests of one in part conversations, and says where they are from: the folder that
// TracesEnv names, or without it random numbers.
func Trace(part int) (requests []Request, from string, err error) {
	if folder := os.Getenv(TracesEnv); folder != "" {
		from = filepath.Join(folder, TraceFile)
		if requests, err = load(from); err != nil {
			return nil, "", fmt.Errorf("reading the trace %s that %s names: %w", from, TracesEnv, err)
		}
		from = TraceFile
	} else {
		requests, from = synthetic(), fmt.Sprintf("random numbers like %s, as %s names no folder", TraceFile, TracesEnv)
	}
	last := max(1, requests[len(requests)-1].At)
	for i := range requests {
		requests[i].At *= daySeconds / last
	}
	requests = slices.DeleteFunc(requests, func(r Request) bool { return r.conversation()>>32%uint64(part) != 0 })
	return requests, fmt.Sprintf("%d requests, of 1 in %d conversations of %s", len(requests), part, from), nil
}

func load(path string) (requests []Request, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(text); ; {
		var r Request
		switch err := lines.Decode(&r); {
		case errors.Is(err, io.EOF) && len(requests) > 0:
			return requests, nil
		case err != nil:
			return nil, err
		case len(r.Blocks) == 0:
			return nil, fmt.Errorf("request %d has no blocks", len(requests))
		}
		requests = append(requests, r)
	}
}

// Figures of the trace.
const (
	syntheticRequests = 6015
	againShare        = 0.36 // of requests, that continue a conversation
	againWithin       = 550  // requests since its last one, on average
	promptMedian      = 7000 // tokens of a first prompt
	promptSpread      = 1.25 // of their logarithms
	promptMost        = 120_000
	turnTokens        = 1000 // that a prompt of a conversation has more than the one before, on average
)

// synthetic makes requests of conversations that begin with the same block.
func synthetic() (requests []Request) {
	rng, blocks := rand.New(rand.NewPCG(1, 1)), int32(0)
	for len(requests) < syntheticRequests {
		r := Request{At: float64(len(requests)), Blocks: []int32{0}}
		back := int(rng.ExpFloat64() * againWithin)
		if back < len(requests) && rng.Float64() < againShare {
			before := requests[len(requests)-1-back]
			r.Tokens, r.Blocks = before.Tokens+int(rng.ExpFloat64()*turnTokens), append(r.Blocks[:0], before.whole()...)
		} else {
			r.Tokens = int(promptMedian * math.Exp(rng.NormFloat64()*promptSpread))
		}
		r.Tokens = min(max(r.Tokens, 1), promptMost)
		for len(r.Blocks)*BlockTokens < r.Tokens {
			blocks++
			r.Blocks = append(r.Blocks, blocks)
		}
		requests = append(requests, r)
	}
	return requests
}
