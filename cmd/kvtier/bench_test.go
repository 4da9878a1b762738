package main

import (
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

func TestModelTokenBytes(t *testing.T) {
	shape := ggml.KV{
		"general.architecture": "qwen3", "qwen3.block_count": uint32(32), "qwen3.embedding_length": uint32(4096),
		"qwen3.attention.head_count": uint32(32), "qwen3.attention.head_count_kv": uint32(8),
	}
	n, err := modelTokenBytes(testmodel.Head(t, shape))
	require.NoError(t, err)
	require.EqualValues(t, defaultTokenBytes, n)
	shape["qwen3.attention.key_length"], shape["qwen3.attention.value_length"] = uint32(192), uint32(64)
	n, err = modelTokenBytes(testmodel.Head(t, shape))
	require.NoError(t, err)
	require.EqualValues(t, defaultTokenBytes, n)
	delete(shape, "qwen3.attention.head_count_kv")
	n, err = modelTokenBytes(testmodel.Head(t, shape))
	require.NoError(t, err)
	require.EqualValues(t, 4*defaultTokenBytes, n, "as many K/V heads as heads")
	_, err = modelTokenBytes(testmodel.Head(t, ggml.KV{"general.architecture": "qwen3"}))
	require.ErrorContains(t, err, "give --bytes-per-token")
}
