package collect

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// TestManyValuesAreNotDecoded: each 0 of a list of prompts would take a prompt's memory.
func TestManyValuesAreNotDecoded(t *testing.T) {
	zeros := strings.Repeat("0,", telemetry.ReportBytesMax/2-1000) + "0"
	_, err := decodeReport([]byte(`{"prompts":[` + zeros + `]}`))
	require.ErrorContains(t, err, "values")
	_, err = decodeTotals([]byte(`{"models":[` + zeros + `]}`))
	require.ErrorContains(t, err, "values")
}

// TestTextsBehindANumber that is too large for any field are checked like others.
func TestTextsBehindANumber(t *testing.T) {
	const form = `{"unknown":%s,"version":1,"process":{"pid":1,"engine":"ollama"},"model":{"name":"%s"}}`
	for _, number := range []string{"1", "1e999"} {
		_, err := decodeReport(fmt.Appendf(nil, form, number, "m"))
		require.NoError(t, err)
		_, err = decodeReport(fmt.Appendf(nil, form, number, `\u001b[2J`))
		require.ErrorContains(t, err, "control characters")
	}
}

// TestTooManyProcesses: a directory with the files of thousands is not read.
func TestTooManyProcesses(t *testing.T) {
	s := newSite(t)
	require.NoError(t, s.make())
	for range processesMax + 1 {
		require.NoError(t, os.WriteFile(s.path(newName()+numbersEnd), nil, 0o600))
	}
	_, err := Read(t.Context(), s.root)
	require.ErrorContains(t, err, fmt.Sprint(processesMax))
}

// Sums stay numbers that JSON can write.
func TestSumsStayFinite(t *testing.T) {
	totals := &totals{}
	for range 3 {
		totals.add(&report{Report: telemetry.Report{Totals: map[string]float64{promptsTotal: sumMax}}})
	}
	require.False(t, math.IsInf(totals.Models[0].Totals[promptsTotal], 0))
}

// FuzzReport: bytes are refused, or lead to totals that can be written and read again.
func FuzzReport(f *testing.F) {
	r := report{Report: wordsSource(1, "n", 7).Report()}
	r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/a"}}
	text, err := encode(r)
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeReport(data)
		if err != nil {
			require.True(t, errors.Is(err, errContent) || errors.Is(err, errVersion), err)
			return
		}
		totals := &totals{Version: totalsVersion}
		totals.add(r)
		text, err := encode(totals)
		require.NoError(t, err)
		_, err = decodeTotals(text)
		require.NoError(t, err)
		state := totals.state("/", []entry{{name: "p", report: r, runs: true, prompts: r}})
		text, err = encode(state.WithWords(nil))
		require.NoError(t, err)
		require.NotContains(t, string(text), `"words":{`)
	})
}

// FuzzTotals: a file is refused, or its content comes back.
func FuzzTotals(f *testing.F) {
	f.Add([]byte(`{"version":2,"folded":["p"],"models":[{"engine":"ollama","totals":{"x":1}}],"tiers":[{"name":"local"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		totals, err := decodeTotals(data)
		if err != nil {
			require.ErrorIs(t, err, errContent)
			return
		}
		text, err := encode(totals)
		require.NoError(t, err)
		again, err := decodeTotals(text)
		require.NoError(t, err)
		second, err := encode(again)
		require.NoError(t, err)
		require.Equal(t, string(text), string(second))
	})
}
