// Package table prints the lists of this repository's programs, in the style of
// "ollama ps".
package table

import (
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
)

// Print prints rows in columns below a header in capitals, without rules and without
// trailing spaces. A row may be shorter than the header. Errors of w are not reported.
func Print(w io.Writer, header []string, rows [][]string) { print(w, header, rows, 4) }

// PrintNarrow is [Print] with columns that are close together, for tables of many columns.
func PrintNarrow(w io.Writer, header []string, rows [][]string) { print(w, header, rows, 2) }

// print separates columns by a number of spaces.
func print(w io.Writer, header []string, rows [][]string, spaces int) {
	upper := make([]string, len(header))
	for i, name := range header {
		upper[i] = strings.ToUpper(name)
	}
	var out strings.Builder
	t := tablewriter.NewWriter(&out)
	t.SetHeader(upper)
	t.SetAutoFormatHeaders(false)
	t.SetHeaderAlignment(tablewriter.ALIGN_LEFT)
	t.SetAlignment(tablewriter.ALIGN_LEFT)
	t.SetAutoWrapText(false)
	t.SetHeaderLine(false)
	t.SetBorder(false)
	t.SetNoWhiteSpace(true)
	t.SetTablePadding(strings.Repeat(" ", spaces))
	t.AppendBulk(rows)
	t.Render()
	for text := range strings.Lines(out.String()) {
		fmt.Fprintln(w, strings.TrimRight(text, " \n"))
	}
}
