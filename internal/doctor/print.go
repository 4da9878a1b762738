package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Print writes a report for people, the worst finding first. The writer escapes characters
// that control a terminal; ends of lines in values are escaped here.
func (r Report) Print(w io.Writer) {
	counts := make(map[Severity]int)
	for _, f := range r.Findings {
		counts[f.Severity]++
		fmt.Fprintf(w, "%-9s%s: %s\n", f.Severity, f.ID, line(f.Says))
		for _, e := range f.Evidence {
			fmt.Fprintf(w, "         | %s: %s\n", line(e.Of), line(e.Value))
		}
		fmt.Fprintf(w, "         %s\n         %s\n         $ %s\n\n", line(f.Matters), line(f.Means), line(f.Remedy))
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "no problems found")
	} else {
		var parts []string
		for _, s := range []Severity{Error, Warning, Note} {
			if n := counts[s]; n > 0 {
				parts = append(parts, plural(n, string(s)))
			}
		}
		fmt.Fprintf(w, "%s found\n", strings.Join(parts, ", "))
	}
	fmt.Fprintf(w, "\nlooked at, with %d checks:\n", len(r.Checks))
	for _, l := range r.Looked {
		fmt.Fprintf(w, "  %s\n", line(l))
	}
}

// line keeps a text on one line.
func line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
