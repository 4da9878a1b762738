package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ollama/ollama/fs/gguf"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/modelfile"
)

// storedTokenBytes returns the bytes of one token's K/V in a model's pages.
func (a *app) storedTokenBytes(ctx context.Context, root *roots, p picked) (int64, error) {
	page, err := root.Recent(ctx, p.has)
	if errors.Is(err, tier.ErrNotFound) {
		return 0, fmt.Errorf("no pages of %q are left; give its GGUF file, or --bytes-per-token", p.model)
	}
	if err != nil {
		return 0, err
	}
	header, err := inspect.Header(root.files(page), page.Path)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, s := range header.Sections {
		n += int64(s.RowBytes)
	}
	return n, nil
}

// f16Bytes is the size of one number of the default cache type.
const f16Bytes = 2

// modelTokenBytes returns the bytes of one token's K/V in f16 by a model's shape, for models
// with attention in every layer.
func modelTokenBytes(path string) (int64, error) {
	f, err := modelfile.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	layers := int64(f.KeyValue("block_count").Uint())
	heads := int64(f.KeyValue("attention.head_count").Uint())
	headDim := int64(0)
	if heads > 0 {
		headDim = int64(f.KeyValue("embedding_length").Uint()) / heads
	}
	k := orElse(f.KeyValue("attention.key_length"), headDim)
	v := orElse(f.KeyValue("attention.value_length"), headDim)
	var kvHeads int64
	switch perLayer := f.KeyValue("attention.head_count_kv"); {
	case perLayer.Uint() > 0:
		kvHeads = layers * int64(perLayer.Uint())
	case len(perLayer.Uints()) > 0:
		for _, n := range perLayer.Uints() {
			kvHeads += int64(n)
		}
	case len(perLayer.Ints()) > 0:
		for _, n := range perLayer.Ints() {
			kvHeads += n
		}
	default:
		kvHeads = layers * heads
	}
	n := kvHeads * (k + v) * f16Bytes
	if n <= 0 {
		return 0, fmt.Errorf("read model %s: it does not say how large its K/V is; give --bytes-per-token", path)
	}
	return n, nil
}

func orElse(kv gguf.KeyValue, otherwise int64) int64 {
	if n := int64(kv.Uint()); n > 0 {
		return n
	}
	return otherwise
}
