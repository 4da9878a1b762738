package encoding

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCold(t *testing.T) {
	for text, want := range map[string][2]ID{
		"q8_0": {Q8_0, Q8_0}, "q4_0": {Q4_0, Q4_0}, "int4": {Int4, Int4}, "q8_0,q4_0": {Q8_0, Q4_0}, " q8_0 , int4 ": {Q8_0, Int4},
	} {
		k, v, err := ParseCold(text)
		require.NoError(t, err, text)
		require.Equal(t, want, [2]ID{k, v}, text)
	}
	for _, text := range []string{"", ",", "q8_0,", ",q8_0", "q8_0,q4_0,int4", "raw", "zstd", "split", "Q8_0", "q8"} {
		k, v, err := ParseCold(text)
		require.ErrorContains(t, err, "q8_0, q4_0, int4", text)
		require.Equal(t, [2]ID{}, [2]ID{k, v})
	}
}

func TestLossyIDs(t *testing.T) {
	for id := range ID(255) {
		_, known := names[id]
		require.Equal(t, known, id.Known())
		require.Equal(t, id == Q8_0 || id == Q4_0 || id == Int4, id.Lossy(), id)
	}
	require.Equal(t, []ID{16, 17, 18}, lossyIDs, "they stand in files")
	require.Equal(t, "q8_0", Q8_0.String())
}
