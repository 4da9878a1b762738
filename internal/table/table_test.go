package table

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrint(t *testing.T) {
	var out strings.Builder
	Print(&out, []string{"name", "ID", "last_used"}, [][]string{
		{"qwen3:latest", "0123456789ab", "2 days ago"},
		{"a name with spaces", "", "never"},
		{"short", "1"},
	})
	require.Equal(t, `NAME                  ID              LAST_USED
qwen3:latest          0123456789ab    2 days ago
a name with spaces                    never
short                 1
`, out.String())
}

func TestPrintNarrow(t *testing.T) {
	var out strings.Builder
	PrintNarrow(&out, []string{"slot", "tokens"}, [][]string{{"0", "8,003"}})
	require.Equal(t, "SLOT  TOKENS\n0     8,003\n", out.String())
}
