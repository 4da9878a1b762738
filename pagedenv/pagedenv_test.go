package pagedenv

import (
	"testing"

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
