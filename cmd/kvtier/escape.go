package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvtier/kvtier/internal/table"
)

// Prompts, identities, names of files and errors that quote them may come from other people.
// Such text may not control a terminal: neither by escape sequences, of one byte or two, nor
// by marks that change the direction of text.

// printable replaces characters that could control a terminal, except ends of lines and
// tabs. A character that the end of a page cuts in two is replaced, too.
func printable(s string) string { return escaped(s, "\n\t", escapeRune) }

// oneLine does as printable for a value within a line.
func oneLine(s string) string { return escaped(s, "", escapeRune) }

// printableJSON does as printable for JSON text. Such characters occur only in strings
// there, and their escapes have the same meaning.
func printableJSON(s string) string {
	return escaped(s, "\n", func(r rune) string {
		if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
			return fmt.Sprintf("\\u%04x\\u%04x", hi, lo)
		}
		return fmt.Sprintf("\\u%04x", r)
	})
}

func escapeRune(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf("\\U%08x", r)
	}
	return fmt.Sprintf("\\u%04x", r)
}

// escaped replaces the characters of s that are neither printable nor in keep by the result
// of escape. Bytes that are no characters are replaced, too.
func escaped(s, keep string, escape func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		case unicode.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		default:
			b.WriteString(escape(r))
		}
	}
	return b.String()
}

// printer writes text through printable. A Write must end with a whole character, as writes
// of package fmt do.
type printer struct{ w io.Writer }

func (p printer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, printable(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// table prints rows whose cells may come from other people.
func (a *app) table(header []string, rows [][]string) { table.Print(a.stdout, header, cells(rows)) }

// narrowTable is table for many columns.
func narrowTable(w io.Writer, header []string, rows [][]string) {
	table.PrintNarrow(w, header, cells(rows))
}

func cells(rows [][]string) [][]string {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
	}
	return rows
}

// excerpt is a part of a prompt within a line: ends of lines and tabs are shown as Go writes
// them.
func excerpt(s string) string {
	return oneLine(strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s))
}
