package team

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvtier/kvtier/internal/bench/trace"
)

// TracesEnv names a folder with a trace of the Mooncake project, TraceFile.
const (
	TracesEnv = "KVTIER_TRACES"
	TraceFile = "mooncake-conversation-first-half.jsonl.gz"
)

// daySeconds are those over which the requests of a trace are spread.
const daySeconds = 24 * 3600

// stickyBlocks tell a conversation: more than the one with which all prompts of a service begin.
const stickyBlocks = 2

// conversation is a hash of a prompt's beginning.
func conversation(r trace.Request) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, r.Blocks[:min(stickyBlocks, len(r.Blocks))]) // a hash takes all bytes
	return h.Sum64()
}

// Trace returns the requests of one in part conversations, and says where they are from: the folder that
// TracesEnv names, or without it random numbers.
func Trace(part int) (requests []trace.Request, from string, err error) {
	if folder := os.Getenv(TracesEnv); folder != "" {
		from = filepath.Join(folder, TraceFile)
		if requests, err = trace.Read(from); err != nil {
			return nil, "", fmt.Errorf("%s: %w", TracesEnv, err)
		}
		from = TraceFile
	} else {
		requests, from = synthetic(), fmt.Sprintf("random numbers like %s, as %s names no folder", TraceFile, TracesEnv)
	}
	last := max(0.001, requests[len(requests)-1].At)
	for i := range requests {
		requests[i].At = requests[i].At / last * daySeconds
	}
	requests = slices.DeleteFunc(requests, func(r trace.Request) bool { return conversation(r)>>32%uint64(part) != 0 })
	return requests, fmt.Sprintf("%d requests, of 1 in %d conversations of %s", len(requests), part, from), nil
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
func synthetic() (requests []trace.Request) {
	rng, blocks := rand.New(rand.NewPCG(1, 1)), int32(0)
	for len(requests) < syntheticRequests {
		r := trace.Request{At: float64(len(requests)), Blocks: []int32{0}}
		back := int(rng.ExpFloat64() * againWithin)
		if back < len(requests) && rng.Float64() < againShare {
			before := requests[len(requests)-1-back]
			r.Tokens, r.Blocks = before.Tokens+int(rng.ExpFloat64()*turnTokens), append(r.Blocks[:0], before.Whole()...)
		} else {
			r.Tokens = int(promptMedian * math.Exp(rng.NormFloat64()*promptSpread))
		}
		r.Tokens = min(max(r.Tokens, 1), promptMost)
		for len(r.Blocks)*trace.BlockTokens < r.Tokens {
			blocks++
			r.Blocks = append(r.Blocks, blocks)
		}
		requests = append(requests, r)
	}
	return requests
}
