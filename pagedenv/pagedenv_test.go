package pagedenv

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What cannot work is refused, with the variable's name.
func TestAfter(t *testing.T) {
	for _, test := range []struct {
		after, selected string
		want            int
		fails           bool
	}{
		{"", "", -1, false},
		{"0", "", 0, false},
		{"'4096'", "", 4096, false},
		{"", "2048", 0, false},
		{"4096", "2048", 4096, false},
		{"", "40ms", 0, false},
		{"-1", "", 0, true},
		{"4k", "", 0, true},
		{"1073741825", "", 0, true},
	} {
		t.Setenv("OLLAMA_PAGED_AFTER", test.after)
		t.Setenv("OLLAMA_PAGED_SELECT", test.selected)
		n, err := After()
		if test.fails {
			require.ErrorContains(t, err, "OLLAMA_PAGED_AFTER="+`"`)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, test.want, n, "%+v", test)
	}
}

func TestSelected(t *testing.T) {
	for value, want := range map[string]Choice{
		"": {}, "0": {}, "'2048'": {Cells: 2048}, "40ms": {Time: 40 * time.Millisecond}, "0.5s": {Time: 500 * time.Millisecond}, "1m": {Time: time.Minute},
	} {
		t.Setenv("OLLAMA_PAGED_SELECT", value)
		got, err := Selected()
		require.NoError(t, err, value)
		require.Equal(t, want, got, value)
	}
	for _, value := range []string{"-1", "2k", "0ms", "-40ms", "999us", "61s", "ms", "40 ms", "40MS", "1073741825"} {
		t.Setenv("OLLAMA_PAGED_SELECT", value)
		_, err := Selected()
		require.ErrorContains(t, err, fmt.Sprintf("OLLAMA_PAGED_SELECT=%q is not a ", value))
	}
}
