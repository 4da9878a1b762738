package main

import "fmt"

// seconds is a time as a person says it: 29 s, 4.1 s, 66 ms.
func seconds(v float64) string {
	if v < 0.9995 {
		return round(v*1e3) + " ms"
	}
	return round(v) + " s"
}

// round keeps two digits, or all of those before the point.
func round(v float64) string {
	if v < 9.95 && v != float64(int(v)) {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// factor is a speedup: 450× faster.
func factor(v float64) string {
	if v >= 1000 {
		return count(int(v+0.5)) + "× faster"
	}
	return round(v) + "× faster"
}

// count is a whole number with its thousands apart.
func count(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
