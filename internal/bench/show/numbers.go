package show

import (
	"fmt"
	"time"
)

// Count is a whole number with separated thousands: 8,003.
func Count(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Seconds is a duration with three significant digits, in seconds, milliseconds or microseconds.
func Seconds(d time.Duration) string {
	if 0 < d && d < 999500*time.Nanosecond {
		return significant(d.Seconds()*1e6) + " µs"
	}
	if d < 999500*time.Microsecond {
		return significant(d.Seconds()*1e3) + " ms"
	}
	return significant(d.Seconds()) + " s"
}

// Times is a ratio: 45×.
func Times(ratio float64) string {
	if ratio >= 999.5 {
		return Count(int(ratio+0.5)) + "×"
	}
	return significant(ratio) + "×"
}

// Percent is a ratio near 1: 99.1 %.
func Percent(ratio float64) string { return fmt.Sprintf("%.1f %%", 100*ratio) }

// Rate is bytes per second: 1,520 MB/s.
func Rate(bytesPerSecond float64) string {
	return Count(int(bytesPerSecond/1e6+0.5)) + " MB/s"
}

// significant rounds a positive number to three digits, without an exponent.
func significant(v float64) string {
	switch {
	case v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
