package proc

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostileNames are names that a process can have.
var hostileNames = []string{"", "a b", "(a) b (c)", ")", "(", ") Z 1 1 1", "\n", ") Z 1\n", "a\nb) R 5 5\n"}

// rest are the fields of a stat after the name, as Linux 6 writes them.
const rest = "S 4 17 18 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 6482 8716288 1 18446744073709551615 0 0 0 0 0 0 0 0 0\n"

func TestParse(t *testing.T) {
	for _, name := range hostileNames {
		s, err := parse(fmt.Sprintf("17 (%s) %s", name, rest))
		require.NoError(t, err, "%q", name)
		require.Equal(t, Stat{State: 'S', Parent: 4, Group: 17, Start: 6482}, s, "%q", name)
	}
	for _, text := range []string{
		"", "17", "17 (cut", "17 (cut)", "17 (cut) S 4 17", rest,
		"17 (a) SS 4 17 18 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 6482 8716288",
		"17 (a) S x 17 18 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 6482 8716288",
		"17 (a) S 4 x 18 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 6482 8716288",
		"17 (a) S 4 17 18 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 -1 8716288",
	} {
		_, err := parse(text)
		require.Error(t, err, "%q", text)
	}
}
