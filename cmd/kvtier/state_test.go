package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// telemetryLimit bounds the waits of the commands below.
const telemetryLimit = 30 * time.Second

// lab has the reporting processes of one script, which are goroutines of the test: the same user as
// kvtier.
type lab struct{ processes []func() }

const labKey = "lab"

func labOf(ts *testscript.TestScript) *lab { return ts.Value(labKey).(*lab) }

// end ends the processes, in the order of their start.
func (l *lab) end() {
	for _, stop := range l.processes {
		stop()
	}
	l.processes = nil
}

// push lets a process report, and returns when readers see it.
func push(ts *testscript.TestScript, root string, source *telemetry.Source) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collect.Push(ctx, root, source, collect.Options{})
	}()
	stop := func() {
		cancel()
		<-done
	}
	l := labOf(ts)
	l.processes = append(l.processes, stop)
	ts.Defer(stop)
	until(ts, "a report", func() bool {
		s, err := collect.Read(ctx, root)
		prompts := slices.DeleteFunc(s.Prompts, func(p telemetry.StatePrompt) bool { return p.Process != source.Process })
		return err == nil && len(prompts) >= min(len(source.Report().Prompts), telemetry.PromptsMax) && slices.ContainsFunc(s.Processes, func(p telemetry.ProcessState) bool { return p.Process == source.Process })
	})
}

// until waits for a condition.
func until(ts *testscript.TestScript, what string, holds func() bool) {
	limit := time.After(telemetryLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			ts.Fatalf("it is waited for in vain: %s", what)
		}
	}
}

// report is the command report ROOT FILE: a process that makes the report in a file. "ago 90s"
// is a time in it, "weights NAME" the weights of the model that the command model writes.
func report(ts *testscript.TestScript, args []string) {
	root := ts.MkAbs(args[0])
	r, err := parseReport(ts.ReadFile(args[1]))
	ts.Check(err)
	push(ts, root, sourceOf(r))
}

// reportTexts are those of a report that differ from run to run.
var reportTexts = regexp.MustCompile(`"(ago|weights|fingerprint) ([^"]+)"`)

func parseReport(text string) (r telemetry.Report, err error) {
	text = reportTexts.ReplaceAllStringFunc(text, func(s string) string {
		kind, value, _ := strings.Cut(strings.Trim(s, `"`), " ")
		switch kind {
		case "weights":
			value = weightsDigest(value)
		case "fingerprint":
			value = tierenv.Fingerprint(identityOf(value)).String()
		default:
			d, parseErr := time.ParseDuration(value)
			err = errors.Join(err, parseErr)
			value = time.Now().Add(-d).Format(time.RFC3339Nano)
		}
		return `"` + value + `"`
	})
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	return r, err
}

// sourceOf reports as a runner does: prompts are counted, and all else is filled in.
func sourceOf(r telemetry.Report) *telemetry.Source {
	meter := new(telemetry.Meter)
	for _, p := range r.Prompts {
		meter.Prompt(p)
	}
	return &telemetry.Source{Process: r.Process, Started: r.Started, Model: r.Model, Meter: meter, Fill: func(to *telemetry.Report) {
		to.Tiers, to.Slots, to.Memory, to.Busters, to.Unpaged = r.Tiers, r.Slots, r.Memory, r.Busters, r.Unpaged
		maps.Copy(to.Gauges, r.Gauges)
		if !r.At.IsZero() {
			to.At = r.At
		}
	}}
}

// quit is the command quit: all processes end.
func quit(ts *testscript.TestScript, _ []string) {
	labOf(ts).end()
}

// folded is the command folded ROOT: it waits until somebody has added all processes to the totals.
func folded(ts *testscript.TestScript, args []string) {
	until(ts, "the totals", func() bool {
		reports, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "telemetry", "p-*.json"))
		ts.Check(err)
		return len(reports) == 0
	})
}

// masks replace parts of an output that differ from run to run.
var masks = []struct {
	text *regexp.Regexp
	mask string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d`), "DATE"},
	{regexp.MustCompile(`\b(just now|\d+ s ago)\b`), "NOW"},
}

// golden is the command golden FILE: it compares the output of the last program with a file, in
// which DATE stands for a date, and NOW for a moment ago.
func golden(ts *testscript.TestScript, args []string) {
	got := ts.ReadFile("stdout")
	masked := got
	for _, m := range masks {
		masked = m.text.ReplaceAllString(masked, m.mask)
	}
	if masked != ts.ReadFile(args[0]) {
		ts.Fatalf("got:\n%s\nwant:\n%s", masked, ts.ReadFile(args[0]))
	}
	for line := range strings.Lines(got) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			ts.Fatalf("a line has %d characters: %s", n, line)
		}
	}
}
