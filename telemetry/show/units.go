package show

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Count prints a number with commas.
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// Units of [Seconds] and [Ago].
const (
	minute = 60.0
	hour   = 60 * minute
	day    = 24 * hour
)

// Seconds prints a span of time in at most two units.
func Seconds(s float64) string {
	switch {
	case !(s >= 0.0005): // also NaN
		return "0 s"
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 59.95:
		return fmt.Sprintf("%.1f s", s)
	case s < hour-0.5:
		return two(s, minute, 1, "min", "s")
	case s < day-minute/2:
		return two(s, hour, minute, "h", "min")
	case s < 1e6*day:
		return two(s, day, hour, "d", "h")
	}
	return "more than a million days"
}

// two prints s in a large and a small unit, rounded to the small one.
func two(s, large, small float64, largeName, smallName string) string {
	whole := math.Round(s / small)
	per := large / small
	first, second := math.Floor(whole/per), math.Mod(whole, per)
	if second == 0 {
		return fmt.Sprintf("%.0f %s", first, largeName)
	}
	return fmt.Sprintf("%.0f %s %.0f %s", first, largeName, second, smallName)
}

// Ago prints a time before now, in one short unit, such as "5 min ago". Clocks of machines and
// of processes differ, so a time in the future is now.
func Ago(t, now time.Time) string {
	s := now.Sub(t).Seconds()
	switch {
	case t.IsZero():
		return "never"
	case s < 1:
		return "just now"
	case s < minute:
		return fmt.Sprintf("%.0f s ago", math.Floor(s))
	case s < hour:
		return fmt.Sprintf("%.0f min ago", math.Floor(s/minute))
	case s < 2*day:
		return fmt.Sprintf("%.0f h ago", math.Floor(s/hour))
	}
	return fmt.Sprintf("%.0f d ago", math.Floor(s/day))
}

// Percent prints a share.
func Percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// total is a counter as a whole number. The state comes from a file, so it may hold anything.
func total(totals map[string]float64, series string) int64 {
	const most = 1 << 53 // up to which a float counts exactly
	if f := totals[series]; f > 0 {
		return int64(min(f, most))
	}
	return 0
}

// Wrap breaks a sentence at spaces into lines of at most columns characters. A longer word has
// a line of its own.
func Wrap(sentence string, columns int) []string {
	var lines []string
	width := 0
	for _, word := range strings.Fields(sentence) {
		n := utf8.RuneCountInString(word)
		if len(lines) > 0 && width+1+n <= columns {
			lines[len(lines)-1] += " " + word
			width += 1 + n
			continue
		}
		lines, width = append(lines, word), n
	}
	return lines
}
