package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// observed is the output of plan --observe --json. --since reads State.
type observed struct {
	sizing.Observed
	State telemetry.State `json:"state"`
}

// observe prints the advice of the counters.
func observe(ctx context.Context, out *output, at *storage, since string) error {
	var before *telemetry.State
	if since != "" {
		earlier, err := readObserved(since)
		if err != nil {
			return err
		}
		before = &earlier
	}
	now, err := at.state(ctx)
	if err != nil {
		return err
	}
	if before != nil && !sizing.Continues(now, *before) {
		return cli.Usagef("--since %s is of other counters (of %s, which began at %s); compare with an earlier state of these, which began at %s",
			since, before.Root, before.Since.Format(time.DateTime), now.Since.Format(time.DateTime))
	}
	o := observed{sizing.Advise(now, before), now}
	o.State.Prompts = nil // --since does not use them
	return out.show(o, o.print)
}

// readObserved reads the output of an earlier plan --observe --json.
func readObserved(path string) (telemetry.State, error) {
	f, err := os.Open(path)
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read --since %s: %w", path, err)
	}
	defer f.Close()
	var o observed
	if err := json.NewDecoder(io.LimitReader(f, 2*telemetry.StateBytesMax)).Decode(&o); err != nil {
		return o.State, fmt.Errorf("read --since %s: %w; give the output of kvtier plan --observe --json", path, err)
	}
	if o.State.At.IsZero() {
		return o.State, fmt.Errorf("read --since %s: it has no state; give the output of kvtier plan --observe --json", path)
	}
	return o.State, nil
}

func (o observed) print(w io.Writer) {
	if !o.Live {
		fmt.Fprintf(w, "No collector runs: these are the counters of %s, when the last one ended.\n\n", o.State.At.Format(time.DateTime))
	}
	fmt.Fprintf(w, "%s in %s, counted since %s.\n", plural(int64(o.Prompts), "prompt"), show.Seconds(o.Elapsed.Seconds()), o.Since.Format(time.DateTime))
	if len(o.Advice) == 0 {
		fmt.Fprintln(w, "\nThese counters recommend nothing: either all is well, or there is too little evidence yet.")
		return
	}
	for _, advice := range o.Advice {
		fmt.Fprintf(w, "\n%s\n  %s: %s.\n", advice.Says, advice.Variable, advice.Change)
		for _, e := range advice.Evidence {
			fmt.Fprintf(w, "  %s: %s\n", e.Name, evidence(e))
		}
	}
}

// evidence prints a number: bytes and whole ones as elsewhere.
func evidence(e sizing.Evidence) string {
	switch {
	case e.Value != math.Trunc(e.Value) || math.Abs(e.Value) > sizing.AmountMax:
		return strconv.FormatFloat(e.Value, 'f', -1, 64)
	case strings.HasPrefix(e.Name, "bytes "):
		return humanBytes(int64(e.Value))
	}
	return count(int64(e.Value))
}
