package llamastate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCacheType(t *testing.T) {
	t.Parallel()
	of := func(kind Kind, k, v []int32) Cache {
		c := Cache{Kind: kind}
		for i, types := range [][]int32{k, v} {
			for _, number := range types {
				c.Tensors[i] = append(c.Tensors[i], Tensor{Type: number})
			}
		}
		return c
	}
	for want, caches := range map[string][]Cache{
		"f16":           {of(Full, []int32{1, 1}, []int32{1, 1}), of(Window, []int32{1}, []int32{1})},
		"q8_0":          {of(Full, []int32{8}, nil)}, // K holds V
		"q8_0/f16":      {of(Full, []int32{8, 8}, []int32{1, 1})},
		"bf16":          {of(Full, []int32{30}, []int32{30}), of(Recurrent, []int32{0}, []int32{0})},
		"f16+q4_0/q4_0": {of(Full, []int32{1, 2}, []int32{2, 2})},
		"type-77":       {of(Full, []int32{77}, []int32{77})},
		"":              {of(Recurrent, []int32{0}, []int32{0})},
	} {
		require.Equal(t, want, (&Shape{Caches: caches}).CacheType())
	}
}
