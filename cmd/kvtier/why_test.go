package main

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
	"github.com/kvtier/kvtier/telemetry/show"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// Names, namespaces and details come from other processes, and files of the directory may have
// been written by anybody who may write there.
func TestHostileStates(t *testing.T) {
	state := telemetry.State{
		Live: true,
		Processes: []telemetry.ProcessState{{
			Process: telemetry.Process{Engine: hostileText, PID: -1}, Model: telemetry.Model{Name: hostileText, Namespace: hostileText, CacheType: hostileText},
			Slots: []telemetry.Slot{{}}, Memory: []telemetry.Memory{{Name: hostileText}}, Busters: []telemetry.Buster{{Begin: -5, End: 1 << 40}},
		}},
		Models: []telemetry.ModelState{{Model: telemetry.Model{Name: hostileText}, Engine: hostileText}},
		Prompts: []telemetry.StatePrompt{
			{Prompt: telemetry.Prompt{Miss: &telemetry.Miss{Cause: hostileText, Detail: hostileText, From: hostileText}}},
		},
		Tiers: []telemetry.Tier{{Name: hostileText, Root: hostileText, Bytes: -1, Budget: 1, Booked: 1 << 62, Pages: -1}},
	}
	var out bytes.Buffer
	o := &output{stdout: printer{&out}, asJSON: true}
	name := modelNames{}.nameOf
	all := func(string) bool { return true }
	use := residency{Live: true, Processes: show.Processes(state, name), Models: []modelUse{{Model: show.Models(state, name)[0]}}, PagesErr: hostileText, counted: true}
	printResidency(o.stdout, use)
	requireHarmless(t, "text", out.String())

	out.Reset()
	printTop(o.stdout, hostileText, state, name)
	requireHarmless(t, "text", out.String())

	out.Reset()
	r := newReader(nil, "", hostileText)
	var list reasons
	for _, b := range show.Busters(state, name, all) {
		list.Busters = append(list.Busters, buster{b, show.BusterAdvice, r.buster(b)})
	}
	for _, m := range show.Misses(state, name, time.Now(), 5, func(telemetry.StatePrompt) bool { return true }) {
		list.Misses = append(list.Misses, miss{m, words{Text: &parted{hostileText, hostileText, hostileText, hostileText, hostileText}}})
	}
	list.print(o.stdout)
	requireHarmless(t, "text", out.String())

	out.Reset()
	require.NoError(t, o.show(list, nil))
	require.NoError(t, o.show(use, nil))
	requireHarmless(t, "JSON", out.String())
}

// A model's own tokens may be hostileText, too.
func TestHostileTokens(t *testing.T) {
	d, err := modelfile.OpenDecoder(testmodel.Head(t, ggml.KV{
		"general.architecture": "qwen3", "tokenizer.ggml.model": "gpt2",
		"tokenizer.ggml.tokens": []string{"ě[2J", "Ċ", "ĉ", "Ãī", "a"}, // byte-level: escape, line end, tab, a C1 control
	}))
	require.NoError(t, err)
	p, err := textOfParts(d, show.Part(telemetry.Words{Was: []int32{4, 0}, Is: []int32{4, 1, 2}}))
	require.NoError(t, err)
	require.Equal(t, parted{Before: "a", Was: "\x1b[2J", Is: "\n\t"}, *p)
	require.Equal(t, `"a«\u001b[2J»"`, p.was())
	require.Equal(t, `"a«\n\t»"`, p.is())
	_, err = textOfParts(d, show.Part(telemetry.Words{Was: []int32{4, 9}}))
	require.ErrorContains(t, err, "token 9 is not one of the model's 5")
}

// A line of text fits a terminal, however long the text is.
func TestQuotesAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 500)
	line := "    was  " + quote(long, long, long)
	require.LessOrEqual(t, len([]rune(line)), columns)
	require.Equal(t, `"a«»b"`, quote("a", "", "b"))
}

// Reasons why the text of a request is not shown.
func TestHiddenText(t *testing.T) {
	store := &modelStore{given: t.TempDir()}
	w := &telemetry.Words{}
	m := show.Miss{Cause: telemetry.CauseDiffers, Namespace: "ours", Weights: "w", Words: w}
	require.Contains(t, newReader(store, "ours", "").miss(m).Hidden, "the model's file is not in "+store.given)
	require.Equal(t, "why not", newReader(store, "ours", "why not").miss(m).Hidden)
	m.Private = true
	require.Contains(t, newReader(store, "ours", "").miss(m).Hidden, "the request is private")
	m.Private, m.Words = false, nil
	require.Contains(t, newReader(store, "ours", "").miss(m).Hidden, "one of the two requests is private")
	m.Detail = "from stored text"
	require.Equal(t, "the text differs from stored text, of which no recent request is in memory", newReader(store, "ours", "").miss(m).Hidden)
	m.Namespace = ""
	require.Contains(t, newReader(store, "ours", "").miss(m).Hidden, `the namespace ""`)
	m.Cause = telemetry.CauseEvicted
	require.Equal(t, words{}, newReader(store, "ours", "").miss(m), "there is no text to show")
}

// TestEveryObstacleIsShown walks each cause from the engine's side to the log, ps, why, their JSON
// and the metrics. Package doctor and package page have the same for theirs.
func TestEveryObstacleIsShown(t *testing.T) {
	for _, e := range telemetry.Obstacles {
		var log bytes.Buffer
		meter := new(telemetry.Meter)
		w := unstored.New(slog.New(slog.NewTextHandler(&log, nil)), meter)
		w.Lost(e.Cause, errors.New("put page 1: "+hostileText))
		source := telemetry.Source{Meter: meter, Model: telemetry.Model{Weights: "aa11", Name: "m"}, Fill: w.Fill}
		report := source.Report()
		state := telemetry.State{
			Live:      true,
			Processes: []telemetry.ProcessState{{Process: report.Process, Model: report.Model, Unstored: report.Unstored}},
			Models:    []telemetry.ModelState{{Model: report.Model, Totals: report.Totals}},
		}
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
		require.Contains(t, log.String(), e.Remedy)

		var out bytes.Buffer
		o := &output{stdout: printer{&out}, asJSON: true}
		name := modelNames{}.nameOf
		processes := show.Processes(state, name)
		printResidency(o.stdout, residency{Live: true, Processes: processes, Models: []modelUse{{Model: show.Models(state, name)[0]}}})
		requireTold(t, e, out.String())
		require.NotContains(t, out.String(), "No slot is in use.")

		out.Reset()
		list := reasons{Live: true, NotStored: []notStored{{processes[0].Model, 1, *processes[0].Unstored}}}
		list.print(o.stdout)
		requireTold(t, e, out.String())

		out.Reset()
		require.NoError(t, o.show(list, nil))
		require.Contains(t, out.String(), `"cause": "`+string(e.Cause)+`"`)
		require.Contains(t, out.String(), `"not_stored"`)

		require.Regexp(t, `(?m)^ollama_kv_not_stored_total\{cause="`+string(e.Cause)+`".*\} 1$`, string(expose.Options{}.Text(state)))
	}
}

// requireTold: output has the meaning and the remedy of a cause, on lines of any length.
func requireTold(t *testing.T, e telemetry.Reason[telemetry.Obstacle], out string) {
	t.Helper()
	requireHarmless(t, "text", out)
	flat := strings.Join(strings.Fields(out), " ")
	require.Contains(t, flat, "Conversations are not stored: "+e.Means)
	require.Contains(t, flat, e.Remedy)
}

// Without an answer, a frame of top says why and keeps the rows of the last one.
func TestTopKeepsItsRows(t *testing.T) {
	at := &storage{config: tierenv.Config{Local: filepath.Join(t.TempDir(), "\x1b[31mnone")}}
	w := &watch{at: at, models: &modelStore{given: t.TempDir(), timeout: &at.timeout}, rows: "the last rows\n"}
	frame := w.frame(t.Context())
	require.Regexp(t, `^kvtier top .*\\u001b\[31mnone  \d\d:\d\d:\d\d\n\n    no server has reported to\s`, frame)
	require.True(t, strings.HasSuffix(frame, "\n\nthe last rows\n"), frame)
	require.NotContains(t, frame, "\x1b")
}
