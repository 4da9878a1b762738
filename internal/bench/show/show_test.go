package show

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 131072: "131,072", 1234567: "1,234,567"} {
		require.Equal(t, want, Count(n))
	}
	for d, want := range map[time.Duration]string{
		1234 * time.Microsecond:    "1.23 ms",
		999_600 * time.Microsecond: "1.00 s",
		101 * time.Millisecond:     "101 ms",
		9_996 * time.Millisecond:   "10.0 s",
		123 * time.Second:          "123 s",
	} {
		require.Equal(t, want, Seconds(d))
	}
	require.Equal(t, "99.1 %", Percent(0.9912))
	require.Equal(t, "1,520 MB/s", Rate(1.5199e9))
	require.Equal(t, "45.3×", Times(45.31))
	require.Equal(t, "0.99×", Times(0.991))
	require.Equal(t, "1,037×", Times(1037.2))
	require.Equal(t, "288×", Times(288.4))
}
