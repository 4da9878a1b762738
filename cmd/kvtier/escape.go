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

// Prompts, identities, names of files and errors that quote them may come from
// anybody. Nothing of them may do something to a terminal: neither escape
// sequences, in one byte or two, nor marks that turn the direction of text.

// printable replaces what could do something to a terminal, other than the ends of
// lines and tabs. A character that a page's end cuts in two is replaced too.
func printable(s string) string { return escaped(s, "\n\t", escapeRune) }

// oneLine is printable for a value within a line.
func oneLine(s string) string { return escaped(s, "", escapeRune) }

// printableJSON is printable for JSON text. What it replaces can only be part of a
// string there, and means the same as before.
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

// escaped replaces, in s, each character that cannot be printed and is not one of
// keep by what escape returns for it, and bytes that are no character.
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

// printer writes text to a person through printable, whatever prints it. A Write
// ends with a whole character, as those of package fmt do.
type printer struct{ w io.Writer }

func (p printer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, printable(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// table prints rows whose cells may come from anybody.
func (a *app) table(header []string, rows [][]string) {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
	}
	table.Print(a.stdout, header, rows)
}
