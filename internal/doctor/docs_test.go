package doctor_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/doctor"
)

var update = flag.Bool("update-docs", false, "write the table of docs/doctor.md")

// Marks around the table.
const (
	tableBegin = "<!-- The table is that of internal/doctor: go test ./internal/doctor -update-docs -->\n"
	tableEnd   = "<!-- End of the table -->\n"
)

// TestDocumentation: the document has every check, as the program explains it.
func TestDocumentation(t *testing.T) {
	const path = "../../docs/doctor.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), tableBegin)
	require.True(t, found)
	table, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found)
	want := "\n| check | meaning |\n|---|---|\n"
	for _, c := range doctor.Checks() {
		want += fmt.Sprintf("| `%s`, %s | %s. %s |\n", c.ID, c.Severity, c.Title, strings.ReplaceAll(c.Matters, "|", `\|`))
	}
	want += "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, want, table)
}
