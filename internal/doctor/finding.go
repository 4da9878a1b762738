package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/machine"
)

// Severity is how much a finding matters.
type Severity string

// Severities, the least first.
const (
	OK      Severity = "ok"
	Note    Severity = "note"    // good to know; nothing is lost
	Warning Severity = "warning" // the tier works, and helps less than it could
	Error   Severity = "error"   // nothing is stored or restored, or pages get lost
)

var severities = []Severity{OK, Note, Warning, Error}

func (s Severity) rank() int { return slices.Index(severities, s) }

// Evidence is a fact that a finding follows from.
type Evidence struct {
	Of    string `json:"of"` // a path, a variable, a command, a series
	Value string `json:"value"`
}

// Finding is one circumstance that somebody should know of.
type Finding struct {
	ID       string     `json:"id"`
	Severity Severity   `json:"severity"`
	Says     string     `json:"says"` // one sentence
	Evidence []Evidence `json:"evidence"`
	Matters  string     `json:"matters"` // one sentence: the consequence
	Means    string     `json:"means"`   // what it is, and where it comes from
	Remedy   string     `json:"remedy"`  // a command, or a sentence where no command can help
}

// Outcome is the result of one check.
type Outcome struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	Severity Severity `json:"severity"` // OK without a finding
}

// Report is the result of all checks.
type Report struct {
	At       time.Time `json:"at"`
	Worst    Severity  `json:"worst"`
	Looked   []string  `json:"looked_at"` // one line for each thing
	Findings []Finding `json:"findings"`  // the worst first
	Checks   []Outcome `json:"checks"`
}

// Check finds one kind of circumstance.
type Check struct {
	ID             string
	Severity       Severity // of its findings
	Title          string   // a few words
	Matters, Means string   // of its findings
	Remedy         string   // a command; names in braces are replaced by the values of a finding

	judge func(s *scene, found func(hit))
}

// hit is a finding in the words of this case.
type hit struct {
	says     string
	evidence []Evidence
	values   []string // names in braces of the remedy, each with its value
	remedy   string   // instead of the check's own; it has names in braces, too, and nothing of other people
}

// with adds values of the remedy, which win over those before, and also adds evidence.
func (h hit) with(values ...string) hit { h.values = append(values, h.values...); return h }
func (h hit) also(of, value string) hit {
	h.evidence = append(h.evidence, Evidence{of, value})
	return h
}

func (c Check) finding(h hit) Finding {
	f := Finding{ID: c.ID, Severity: c.Severity, Says: machine.Capital(h.says), Evidence: h.evidence, Matters: c.Matters, Means: c.Means}
	if f.Evidence == nil {
		f.Evidence = []Evidence{}
	}
	f.Remedy = strings.NewReplacer(h.values...).Replace(cmp.Or(h.remedy, c.Remedy))
	return f
}

// Checks lists every check, in the order of the documentation.
func Checks() []Check {
	return slices.Concat(serverChecks, installChecks, rootChecks, engineChecks, spaceChecks, runningChecks)
}

// findingsMax bounds the findings of one check: a model store may have thousands of models.
const findingsMax = 16

func (s *scene) judge() Report {
	r := Report{At: time.Now(), Worst: OK, Looked: s.looked(), Findings: []Finding{}}
	for _, c := range Checks() {
		n := 0
		c.judge(s, func(h hit) {
			if n++; n <= findingsMax {
				r.Findings = append(r.Findings, c.finding(h))
			}
		})
		o := Outcome{c.ID, c.Title, OK}
		if n > 0 {
			o.Severity = c.Severity
		}
		r.Checks = append(r.Checks, o)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return b.Severity.rank() - a.Severity.rank() })
	if len(r.Findings) > 0 {
		r.Worst = r.Findings[0].Severity
	}
	return r
}

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
	fmt.Fprintln(w, summary(counts))
	fmt.Fprintf(w, "\nlooked at, with %d checks:\n", len(r.Checks))
	for _, l := range r.Looked {
		fmt.Fprintf(w, "  %s\n", line(l))
	}
}

// summary says how many findings there are, and that worse ones are not there.
func summary(counts map[Severity]int) string {
	var parts []string
	for _, s := range []Severity{Error, Warning, Note} {
		if n := counts[s]; n > 0 {
			parts = append(parts, plural(n, string(s)))
		}
	}
	switch found := strings.Join(parts, ", "); {
	case found == "":
		return "no problems found"
	case counts[Error] > 0:
		return found + " found"
	case counts[Warning] > 0:
		return found + ", and no error"
	default:
		return found + ", no warning and no error"
	}
}

func line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
