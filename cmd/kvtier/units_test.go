package main

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/internal/cli"
)

func TestUnits(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "100%": 1, "1": 1} {
		got, err := share(text)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1e-9)
	}
	for _, text := range []string{"", "0", "0%", "-5%", "101%", "2", "five", "NaN", "5%%"} {
		_, err := share(text)
		require.ErrorContains(t, err, "is not a share", text)
	}
	for text, want := range map[string]time.Duration{
		"12h": 12 * time.Hour, "30d": 720 * time.Hour, "2w": 336 * time.Hour, "1.5d": 36 * time.Hour,
		"5min": 5 * time.Minute, "1h30m": 90 * time.Minute, "1m30s": 90 * time.Second, "45s": 45 * time.Second,
	} {
		got, err := age(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "0d", "-3d", "30", "d", "soon", "1e300d", "NaNd", "0min", "5mo", "5 d", "m", "..m", "5D"} {
		_, err := age(text)
		require.ErrorContains(t, err, "is not an age", text)
	}
	for text, want := range map[string]string{"5m": "give 5min or 150d", "5M": "give 5min or 150d", "1.5m": "give 1.5min or 45d", "90m": "give 90min or 2700d"} {
		_, err := age(text)
		require.EqualError(t, err, strconv.Quote(text)+" could be minutes or months; "+want)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		require.Equal(t, want, count(n))
	}
	require.Equal(t, "1 page", plural(1, "page"))
	require.Equal(t, "2,000 pages", plural(2000, "page"))
}

// TestVerdict: damage counts more than files that could not be checked.
func TestVerdict(t *testing.T) {
	tier := func(damage, unchecked int, err string) checkedTier {
		c := inspect.TierCheck{Tier: "local", Damage: damage, Problems: map[inspect.Problem]int{inspect.ProblemUnchecked: unchecked}}
		if err != "" {
			c.Err = errors.New(err)
		}
		return checkedTier{TierCheck: c}
	}
	for name, test := range map[string]struct {
		tiers  []checkedTier
		status int
		says   string
	}{
		"clean":        {[]checkedTier{tier(0, 0, "")}, 0, ""},
		"damage":       {[]checkedTier{tier(0, 0, ""), tier(2, 0, "")}, 1, "2 files are damaged"},
		"unchecked":    {[]checkedTier{tier(0, 1, "")}, exitUnchecked, "1 file could not be checked"},
		"a tier":       {[]checkedTier{tier(0, 0, ""), tier(0, 0, "it is gone")}, exitUnchecked, "could not be checked: it is gone"},
		"both of them": {[]checkedTier{tier(1, 3, "")}, 1, "1 file is damaged"},
	} {
		err := checked{Tiers: test.tiers}.verdict(false)
		if test.status == 0 {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, test.says, name)
		var status *cli.Error
		require.Equal(t, test.status == exitUnchecked, errors.As(err, &status), name)
	}
	require.ErrorContains(t, checked{Tiers: []checkedTier{tier(1, 0, "")}}.verdict(true), "could not be repaired")
}
