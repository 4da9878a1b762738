package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
	"github.com/kvtier/kvtier/telemetry/show"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// TestEveryObstacleIsShown walks each cause from the engine's side to the log, ps, why, their JSON
// and the metrics. Package doctor and package page have the same for theirs.
func TestEveryObstacleIsShown(t *testing.T) {
	for _, cause := range telemetry.Obstacles {
		var log bytes.Buffer
		meter := new(telemetry.Meter)
		w := unstored.New(slog.New(slog.NewTextHandler(&log, nil)), meter)
		w.Lost(cause, errors.New("put page 1: "+hostileText))
		source := telemetry.Source{Meter: meter, Model: telemetry.Model{Weights: "aa11", Name: "m"}, Fill: w.Fill}
		report := source.Report()
		state := telemetry.State{
			Live:      true,
			Processes: []telemetry.ProcessState{{Process: report.Process, Model: report.Model, Unstored: report.Unstored}},
			Models:    []telemetry.ModelState{{Model: report.Model, Totals: report.Totals}},
		}
		e := unstored.Explain(cause)
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
		require.Contains(t, log.String(), e.Remedy)

		var out bytes.Buffer
		o := &output{stdout: printer{&out}, asJSON: true}
		name := modelNames{}.nameOf
		processes := show.Processes(state, name)
		printResidency(o.stdout, residency{Live: true, Processes: processes, Models: []modelUse{{Model: show.Models(state, name)[0]}}}, false)
		requireTold(t, e, out.String())
		require.NotContains(t, out.String(), "No slot is in use.")

		out.Reset()
		list := reasons{Live: true, NotStored: []notStored{{processes[0].Model, 1, *processes[0].Unstored}}}
		list.print(o.stdout)
		requireTold(t, e, out.String())

		out.Reset()
		require.NoError(t, o.show(list, nil))
		require.Contains(t, out.String(), `"cause": "`+string(cause)+`"`)
		require.Contains(t, out.String(), `"not_stored"`)

		out.Reset()
		require.NoError(t, expose.Options{}.Write(&out, state))
		require.Regexp(t, `(?m)^ollama_kv_not_stored_total\{cause="`+string(cause)+`".*\} 1$`, out.String())
	}
}

// requireTold: output has the meaning and the remedy of a cause, on lines of any length.
func requireTold(t *testing.T, e unstored.Explanation, out string) {
	t.Helper()
	requireHarmless(t, "text", out)
	flat := strings.Join(strings.Fields(out), " ")
	require.Contains(t, flat, "Conversations are not stored: "+e.Means)
	require.Contains(t, flat, e.Remedy)
}
