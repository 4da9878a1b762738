package tierenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

func TestParseSplit(t *testing.T) {
	for text, want := range map[string]Split{
		"25,75,0":           {Hot: 25, Warm: 75},
		"25,25,50":          {Hot: 25, Warm: 25, Cold: 50},
		" 10 , 20.5, 69.5 ": {Hot: 10, Warm: 20.5, Cold: 69.5},
		"0,0,100":           {Cold: 100},
		"33.33,33.33,33.34": {Hot: 33.33, Warm: 33.33, Cold: 33.34},
	} {
		got, err := parseSplit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, *got, text)
	}
	for text, says := range map[string]string{
		"25,75":          "not three percentages",
		"10,20,30,40":    "not three percentages",
		"25 75 0":        "not three percentages",
		"25,25,49":       "add up to 99",
		"50,50,50":       "add up to 150",
		"-25,75,50":      `"-25" is not a percentage`,
		"125,-25,0":      `"125" is not a percentage`,
		"NaN,50,50":      `"NaN" is not a percentage`,
		"Inf,0,0":        `"Inf" is not a percentage`,
		"a,b,c":          `"a" is not a percentage`,
		"25%,25%,50%":    `"25%" is not a percentage`,
		",,":             `"" is not a percentage`,
		"100,0,0":        "no room for pages",
		"33.3,33.3,33.3": "add up to",
	} {
		_, err := parseSplit(text)
		require.ErrorContains(t, err, says, text)
	}
}

// Variables of a budget win over the shares, in every combination.
func TestSplitAndBudgets(t *testing.T) {
	const total = 1000e9
	for _, test := range []struct {
		split, ram, local string
		wantRAM, wantDisk int64
	}{
		{"", "", "", 0, 20e9},
		{"25,25,50", "", "", 250e9, 750e9},
		{"25,75,0", "", "", 750e9, 750e9},
		{"40,0,60", "", "", 0, 600e9},
		{"25,25,50", "7", "", 7e9, 750e9},
		{"25,25,50", "0", "", 0, 750e9},
		{"25,25,50", "", "9", 250e9, 9e9},
		{"25,25,50", "", "0", 250e9, 0},
		{"25,25,50", "7", "9", 7e9, 9e9},
	} {
		tierenvtest.Set(t, map[string]string{
			"OLLAMA_KV_TIER_LOCAL": t.TempDir(), SplitVariable: test.split,
			"OLLAMA_KV_TIER_RAM_GB": test.ram, "OLLAMA_KV_TIER_LOCAL_GB": test.local,
		})
		log, lines := tierenvtest.Logger()
		c, err := FromEnvironment(log)
		require.NoError(t, err)
		c = c.ApplySplit("a", total, "", nil, log)
		require.Equal(t, test.wantRAM, c.RAMBytes, "%+v", test)
		require.Equal(t, test.wantDisk, c.LocalBytes, "%+v", test)
		if test.split == "" {
			require.Empty(t, lines.String())
			require.NoFileExists(t, filepath.Join(c.Local, splitsFile))
		} else {
			require.Contains(t, lines.String(), "budgets by OLLAMA_KV_TIER_SPLIT")
			require.Contains(t, lines.String(), "hot_sets=nothing")
		}
	}
}

// HOT has a share only with tiering on, and of a split that can be used.
func TestHotBytes(t *testing.T) {
	for _, test := range []struct {
		tiering, split string
		want           int64
		ok             bool
	}{
		{"1", "25,25,50", 250, true},
		{"1", "0,0,100", 0, true},
		{"1", "", 0, false},
		{"1", "25,25", 0, false},
		{"0", "25,25,50", 0, false},
		{"", "25,25,50", 0, false},
	} {
		tierenvtest.Set(t, map[string]string{TieringVariable: test.tiering, SplitVariable: test.split})
		hot, ok := HotBytes(1000)
		require.Equal(t, test.ok, ok, "%+v", test)
		require.Equal(t, test.want, hot, "%+v", test)
	}
}

// Without a known context the budgets stay, and a line says why.
func TestSplitOfAnUnknownContext(t *testing.T) {
	for _, err := range []error{nil, errors.New("no such shape")} {
		log, lines := tierenvtest.Logger()
		c := Config{Local: t.TempDir(), LocalBytes: DefaultLocalBytes, Split: &Split{Hot: 25, Warm: 25, Cold: 50}}
		require.Equal(t, c, c.ApplySplit("a", 0, "", err, log))
		require.Contains(t, lines.String(), "sets no budgets")
		require.NoFileExists(t, filepath.Join(c.Local, splitsFile))
	}
}

// The directory has room for the shares of all models that use it, so that none evicts
// another's pages.
func TestSplitsOfSeveralModels(t *testing.T) {
	path := filepath.Join(t.TempDir(), splitsFile)
	now := time.Unix(1_800_000_000, 0)
	sum := func(name string, own int64, now time.Time) int64 {
		t.Helper()
		n, err := sumOfShares(path, name, own, now)
		require.NoError(t, err)
		return n
	}
	require.EqualValues(t, 100, sum("a", 100, now))
	require.EqualValues(t, 101, sum("b", 1, now))
	require.EqualValues(t, 51, sum("a", 50, now)) // another context
	require.EqualValues(t, 51, sum("b", 1, now.Add(splitsForgotten)))
	require.EqualValues(t, 3, sum("c", 2, now.Add(splitsForgotten+time.Second))) // a is forgotten
	for i := range 3 * splitsMax {
		require.LessOrEqual(t, sum(fmt.Sprint(i), 1, now.Add(splitsForgotten+time.Duration(i+2)*time.Second)), int64(splitsMax)+1)
	}
}

// A file that cannot be used makes the budget no smaller than the default one: a smaller one
// could delete the pages of other models.
func TestDamagedSplits(t *testing.T) {
	for text, want := range map[string]int64{
		"{": DefaultLocalBytes, `"x"`: DefaultLocalBytes,
		"null": 750, "{}": 750, `{"b":{"bytes":-5,"seen":1}}`: 750,
		fmt.Sprintf(`{"b":{"bytes":9223372036854775807,"seen":%d}}`, time.Now().Unix()): 750,
	} {
		local := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(local, splitsFile), []byte(text), 0o600))
		log, _ := tierenvtest.Logger()
		c := Config{Local: local, Split: &Split{Hot: 25, Warm: 25, Cold: 50}}
		require.Equal(t, want, c.ApplySplit("a", 1000, "", nil, log).LocalBytes, text)
	}
}
