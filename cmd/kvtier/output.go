package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/table"
	"github.com/kvtier/kvtier/telemetry/show"
)

type output struct {
	stdout, stderr io.Writer // escape control characters
	screen         io.Writer // a terminal for progress bars, nil without one
	asJSON         bool
}

// show prints v as JSON with --json, and what text prints without.
func (o *output) show(v any, text func(io.Writer)) error {
	if !o.asJSON {
		text(o.stdout)
		return nil
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(o.stdout, printableJSON(b.String()))
	return err
}

// bars returns a display for the bytes of a long verb, nil without a terminal.
func (o *output) bars() *progress.Display {
	if o.asJSON || o.screen == nil {
		return nil
	}
	const names = 15 // width of their column
	return progress.NewTransient(o.screen, names)
}

// newLogger prints to standard error, without times.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && attr.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return attr
		},
	}))
}

// Prompts, identities, names of files and errors that quote them may come from other people.
// Such text may not control a terminal: neither by escape sequences, of one byte or two, nor
// by marks that change the direction of text.

// printable replaces characters that could control a terminal, except ends of lines and
// tabs. A character that the end of a page cuts in two is replaced, too.
func printable(s string) string { return escaped(s, "\n\t") }

// oneLine does as printable for a value within a line.
func oneLine(s string) string { return escaped(s, "") }

// printableJSON does as printable for JSON text. Such characters occur only in strings
// there, and their escapes have the same meaning.
func printableJSON(s string) string { return escaped(s, "\n") }

// escaped replaces the characters of s that are neither printable nor in keep as JSON does. Bytes
// that are no characters are replaced, too.
func escaped(s, keep string) string {
	var b strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || unicode.IsPrint(r) || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, "\\u%04x", unit)
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

// printTable prints rows whose cells may come from other people.
func printTable(w io.Writer, header []string, rows [][]string) {
	table.Print(w, header, oneLines(rows))
}

func printNarrow(w io.Writer, header []string, rows [][]string) {
	table.PrintNarrow(w, header, oneLines(rows))
}

// rowsOf makes a row of each element.
func rowsOf[T any](all []T, row func(T) []string) (rows [][]string) {
	for _, one := range all {
		rows = append(rows, row(one))
	}
	return rows
}

func oneLines(rows [][]string) [][]string {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
	}
	return rows
}

// field prints a name and a value, in two columns.
func field(w io.Writer, name, format string, args ...any) {
	fmt.Fprintf(w, "%-15s%s\n", oneLine(name), oneLine(fmt.Sprintf(format, args...)))
}

// columns is the width of a terminal that output fits where names are not too long.
const columns = 80

// wrapped prints a sentence in lines.
func wrapped(w io.Writer, indent, sentence string) {
	for _, line := range show.Wrap(oneLine(sentence), columns-len(indent)) {
		fmt.Fprintln(w, indent+line)
	}
}

func paragraph(w io.Writer, sentence string) { wrapped(w, "    ", sentence) }

// excerpt is a part of a prompt within a line: ends of lines and tabs are shown as Go writes them.
func excerpt(s string) string {
	return oneLine(strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s))
}

// writeBeside lets write fill a hidden file beside another and puts it in that one's place, so that
// no reader sees a part. Both files are those of by.
func writeBeside(what, path string, by rights, write func(*os.File) error) error {
	var beside *os.File
	err := by.do(func() (err error) {
		beside, err = os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s beside %s: %w", what, path, err)
	}
	err = errors.Join(write(beside), beside.Close())
	if end := by.do(func() error {
		if err == nil {
			err = os.Rename(beside.Name(), path)
		}
		if err != nil {
			os.Remove(beside.Name())
		}
		return err
	}); end != nil {
		return fmt.Errorf("write %s to %s: %w", what, path, end)
	}
	return nil
}

func share(s string) (float64, error) {
	digits, percent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(digits, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("%q is not a share; give one such as 5%%, or 0.05", s)
	}
	return f, nil
}

// ageUnits are those of an age. m is none of them: it could mean minutes or months, and pages are removed by
// their age.
var ageUnits = map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}

// age reads a duration such as 30min, 12h, 30d or 2w.
func age(s string) (time.Duration, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseFloat(digits, 64)
	d := n * float64(ageUnits[s[len(digits):]])
	if err != nil || !(d >= 1 && d < math.MaxInt64) {
		return 0, fmt.Errorf("%q is not an age; give one such as 30min, 12h, 30d or 2w", s)
	}
	return time.Duration(d), nil
}

// count prints a number with commas.
func count[T ~int | ~int64](n T) string { return show.Count(int64(n)) }

// plural prints a number and its noun, whose plural takes an s.
func plural[T ~int | ~int64](n T, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

// humanBytes prints a size as Ollama does.
func humanBytes(n int64) string { return format.HumanBytes(n) }

// when prints a time as ollama list does.
func when(t time.Time) string { return format.HumanTime(t, "never") }
