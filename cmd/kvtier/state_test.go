package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// telemetryLimit bounds the waits of the commands below.
const telemetryLimit = 30 * time.Second

// lab has the collectors and the reporting processes of one script. Both are goroutines of the
// test, which is the same user as kvtier.
type lab struct {
	collectors, processes []func()
}

const labKey = "lab"

func labOf(ts *testscript.TestScript) *lab { return ts.Value(labKey).(*lab) }

// end ends functions that the lab started, in the order of their start.
func end(all *[]func()) {
	for _, stop := range *all {
		stop()
	}
	*all = nil
}

// start runs fn until the script ends or the list is ended.
func start(ts *testscript.TestScript, list *[]func(), fn func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		fn(ctx)
	}()
	stop := func() {
		cancel()
		done.Wait()
	}
	*list = append(*list, stop)
	ts.Defer(stop)
}

// startCollector is the command collector ROOT.
func startCollector(ts *testscript.TestScript, args []string) {
	serves, failed := make(chan struct{}), make(chan error, 1)
	start(ts, &labOf(ts).collectors, func(ctx context.Context) {
		var once sync.Once
		failed <- collect.Serve(ctx, ts.MkAbs(args[0]), collect.Options{OnServe: func() { once.Do(func() { close(serves) }) }})
	})
	select {
	case <-serves:
	case err := <-failed:
		ts.Fatalf("collect: %v", err)
	case <-time.After(telemetryLimit):
		ts.Fatalf("the collector does not begin")
	}
}

// collectLast has a collector of a root take the last report of a process. Both end.
func collectLast(ts *testscript.TestScript, root string, source *telemetry.Source) {
	l := labOf(ts)
	startCollector(ts, []string{root})
	over, done := context.WithCancel(context.Background())
	done()
	collect.Push(over, root, source, collect.Options{Intervals: collect.Intervals{Last: time.Minute}})
	end(&l.collectors)
}

// report is the command report ROOT FILE: a process that makes the report in a file. "ago 90s"
// is a time in it, "weights NAME" the weights of the model that the command model writes.
func report(ts *testscript.TestScript, args []string) {
	root := ts.MkAbs(args[0])
	r, err := parseReport(ts.ReadFile(args[1]))
	ts.Check(err)
	source := sourceOf(r)
	start(ts, &labOf(ts).processes, func(ctx context.Context) { collect.Push(ctx, root, source, collect.Options{}) })
	until(ts, root, func(s telemetry.State) bool {
		return slices.ContainsFunc(s.Processes, func(p telemetry.ProcessState) bool { return p.Process == r.Process })
	})
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

// until waits for a state.
func until(ts *testscript.TestScript, root string, good func(telemetry.State) bool) {
	limit := time.After(telemetryLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := collect.Read(context.Background(), root)
		if err == nil && good(s) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			ts.Fatalf("the collector has no such state: %v, %+v", err, s)
		}
	}
}

// quit is the command quit processes or quit collector.
func quit(ts *testscript.TestScript, args []string) {
	if args[0] == "processes" {
		end(&labOf(ts).processes)
	} else {
		end(&labOf(ts).collectors)
	}
}

// live is the command live ROOT: it waits until a collector answers.
func live(ts *testscript.TestScript, args []string) {
	until(ts, ts.MkAbs(args[0]), func(s telemetry.State) bool { return s.Live })
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
