package doctor

import (
	"fmt"
	"io"
	"regexp"
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
		fmt.Fprintf(w, "         %s\n         $ %s\n\n", line(f.Matters), line(f.Remedy))
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
		fmt.Fprintf(w, "%s found; kvtier doctor --explain ID says more about one\n", strings.Join(parts, ", "))
	}
	fmt.Fprintf(w, "\nlooked at, with %d checks:\n", len(r.Checks))
	for _, l := range r.Looked {
		fmt.Fprintf(w, "  %s\n", line(l))
	}
}

// Explain writes all that is known about the finding of a check.
func (c Check) Explain(w io.Writer) {
	fmt.Fprintf(w, "%s (%s)\n%s.\n\n%s\n%s\n\nRemedy:\n  %s\n", c.ID, c.Severity, c.Title, c.Matters, c.Means, c.Remedy)
}

// braced matches the name of a value in a remedy.
var braced = regexp.MustCompile(`\{[a-z]+\}`)

// General is the check with words in capitals for the values of a finding.
func (c Check) General() Check {
	remedy := strings.NewReplacer("{kvtier}", "kvtier", "{sudo}", "sudo", "{journal}", "journalctl -u SERVER", "{set}", "set "+c.Sets+" for the server").Replace(c.Remedy)
	c.Remedy = braced.ReplaceAllStringFunc(remedy, func(name string) string { return strings.ToUpper(strings.Trim(name, "{}")) })
	return c
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
