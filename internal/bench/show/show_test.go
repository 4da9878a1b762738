package show

import (
	"bytes"
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

// Where no terminal reads, a step is one line without control characters.
func TestPlainSteps(t *testing.T) {
	var out bytes.Buffer
	steps := NewSteps(&out)
	step := steps.Step("cold")
	require.Empty(t, out.String())
	step.End("29.4 s")
	steps.Step("nothing to say").End("")
	steps.Close()
	require.Equal(t, "cold                                        29.4 s\nnothing to say\n", out.String())
}

func TestLiveStep(t *testing.T) {
	width := 0
	s := &liveStep{name: "cold", started: time.Now().Add(-3 * time.Second), width: func() int { return width }}
	require.Contains(t, s.String(), " 3s")
	s.End("29.4 s")
	require.Equal(t, "cold                                        29.4 s", s.String())
	width = 2
	require.Equal(t, "co", s.String())
}
