package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/telemetry/show"
)

// share reads a share such as 5% or 0.05.
func share(s string) (float64, error) {
	digits, percent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(digits, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("%q is not a share; give one such as 5%%, or 0.05", s)
	}
	return f, nil
}

const (
	day = 24 * time.Hour

	// monthDays is the length of a month in a suggestion.
	monthDays = 30
)

// ageUnits are the units that time.ParseDuration lacks.
var ageUnits = map[string]time.Duration{"min": time.Minute, "d": day, "w": 7 * day}

// bareM matches an age that could be minutes or months.
var bareM = regexp.MustCompile(`^([0-9.]+)[mM]$`)

// age reads a duration such as 30min, 12h, 30d or 2w. Pages are removed by their age, so a
// text that could mean minutes or months is refused.
func age(s string) (time.Duration, error) {
	if m := bareM.FindStringSubmatch(s); m != nil {
		if n, err := strconv.ParseFloat(m[1], 64); err == nil {
			return 0, fmt.Errorf("%q could be minutes or months; give %smin or %vd", s, m[1], n*monthDays)
		}
	}
	for suffix, unit := range ageUnits {
		digits, ok := strings.CutSuffix(s, suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(digits, 64)
		if d := n * float64(unit); err == nil && d >= 1 && d < math.MaxInt64 {
			return time.Duration(d), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not an age; give one such as 30min, 12h, 30d or 2w", s)
}

// count prints a number with commas.
func count[T ~int | ~int64](n T) string { return show.Count(int64(n)) }

// plural prints a number and its noun, whose plural takes an s.
func plural[T ~int | ~int64](n T, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

// humanBytes prints a size as Ollama does.
func humanBytes(n int64) string { return format.HumanBytes(n) }

// when prints a time as ollama list does.
func when(t time.Time) string { return format.HumanTime(t, "never") }
