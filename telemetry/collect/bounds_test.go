package collect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	root := t.TempDir()
	dir := filepath.Join(root, directoryName)
	require.NoError(t, os.Mkdir(dir, 0o700))
	for range processesMax + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, newName()+numbersEnd), nil, 0o600))
	}
	_, err := Read(t.Context(), root)
	require.ErrorContains(t, err, fmt.Sprint(processesMax))
}

// TestAClockThatWasWrong: what a process told with a time of ten years later is as of its reading.
func TestAClockThatWasWrong(t *testing.T) {
	root := t.TempDir()
	place, err := newPlace(root, Options{}.withDefaults())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(place.dir, 0o700))
	write := func(at time.Time, pages int) string {
		source := testSource(1)
		r := source.Report()
		r.At, r.Tiers = at, []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/x", Pages: pages}}
		data, err := json.Marshal(report{r, at})
		require.NoError(t, err)
		name := newName() + numbersEnd
		require.NoError(t, os.WriteFile(place.path(name), data, 0o600))
		return name
	}
	var all totals
	add := func(path string) {
		r, err := place.readReport(path)
		require.NoError(t, err)
		all.add(r)
	}
	add(write(time.Now().AddDate(10, 0, 0), 1))
	add(write(time.Now(), 777))
	require.Equal(t, 777, all.Tiers[0].Pages)
	require.False(t, all.Models[0].LastUsed.After(time.Now()))
}
