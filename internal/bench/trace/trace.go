// Package trace reads requests of LLM servers, as the Mooncake project publishes them.
package trace

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// BlockTokens are the tokens of a block.
const BlockTokens = 512

// Request is a prompt. Prompts with the same block have the same text up to the end of that block.
type Request struct {
	At     float64 `json:"timestamp"` // seconds since the trace began; milliseconds in a file
	Tokens int     `json:"input_length"`
	Blocks []int32 `json:"hash_ids"` // the last one may be shorter
}

// Whole returns the blocks without a last one that is shorter.
func (r Request) Whole() []int32 { return r.Blocks[:min(len(r.Blocks), r.Tokens/BlockTokens)] }

// Known returns the blocks that can be given back: the last token of a prompt is computed.
func (r Request) Known() []int32 { return r.Blocks[:min(len(r.Blocks), (r.Tokens-1)/BlockTokens)] }

// Read reads a file of JSON lines, also packed by gzip. The requests are in the order of their times. A file
// without requests is an error, as is a request without tokens, without blocks or with more blocks than its
// tokens fill.
func Read(path string) ([]Request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	defer file.Close()
	requests, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("reading the trace %s: %w", path, err)
	}
	return requests, nil
}

// gzipMagic are the first bytes of a file that gzip has packed.
const gzipMagic = "\x1f\x8b"

func read(file io.Reader) (requests []Request, err error) {
	text := bufio.NewReader(file)
	var plain io.Reader = text
	if magic, _ := text.Peek(len(gzipMagic)); string(magic) == gzipMagic {
		if plain, err = gzip.NewReader(text); err != nil {
			return nil, err
		}
	}
	for lines := json.NewDecoder(plain); ; {
		var r Request
		switch err := lines.Decode(&r); {
		case errors.Is(err, io.EOF) && len(requests) > 0:
			slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
			return requests, nil
		case err != nil:
			return nil, fmt.Errorf("request %d: %w", len(requests), err)
		}
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("request %d %w", len(requests), err)
		}
		r.At /= 1000
		requests = append(requests, r)
	}
}

// mostSeconds bounds the time of a request: a hundred years.
const mostSeconds = 100 * 365 * 24 * 3600

func (r Request) check() error {
	switch {
	case r.At < 0 || r.At > mostSeconds*1000:
		return fmt.Errorf("is at %g ms, want 0 to a hundred years", r.At)
	case len(r.Blocks) == 0:
		return errors.New("has no blocks")
	case r.Tokens <= (len(r.Blocks)-1)*BlockTokens:
		return fmt.Errorf("has %d tokens in %d blocks of %d", r.Tokens, len(r.Blocks), BlockTokens)
	}
	return nil
}
