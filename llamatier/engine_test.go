package llamatier

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadGenerated: numbers are printed with six digits, and the bounds hold the true number.
func TestReadGenerated(t *testing.T) {
	for _, n := range []int{0, 7, 99_999, 999_999, 1_000_000, 1_000_004, 1_234_565, 9_999_994, 9_999_996, 12_345_678, 987_654_321_012} {
		least, most, err := readGenerated(fmt.Appendf(nil, "# TYPE x counter\nllamacpp:tokens_predicted_total %.6g\nllamacpp:x 5\n", float64(n)))
		require.NoError(t, err)
		require.LessOrEqual(t, least, n)
		require.GreaterOrEqual(t, most, n)
		require.LessOrEqual(t, most-least, n/100_000+1)
		if n < 1_000_000 {
			require.Equal(t, least, most)
		}
	}
	for _, text := range []string{"", "nan", "-1", "1e+99", "1e+400", "99999999999999999999", "1.5", "1e-5", "inf", "5 6"} {
		_, _, err := readGenerated([]byte("llamacpp:tokens_predicted_total " + text + "\n"))
		require.Error(t, err, text)
	}
}

// TestMetricsOfClients are not read: each reading begins new averages.
func TestMetricsOfClients(t *testing.T) {
	e := &Engine{MetricsOfClients: true} // without a client a question would panic
	_, _, err := e.Generated(t.Context())
	require.ErrorIs(t, err, errUncounted)
}
