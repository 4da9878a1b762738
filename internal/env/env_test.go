package env

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const name = "KVTIER_TEST_VARIABLE"

// values are variables and the results of all readers. A reader of bytes returns unset = 7
// for an unset variable.
var values = []struct {
	set   string
	value string
	on    bool
	bytes int64 // -1: refused
	bad   bool  // neither true nor false
}{
	{set: "", bytes: 7},
	{set: "  \t\n", bytes: 7},
	{set: `""`, bytes: 7},
	{set: `''`, bytes: 7},
	{set: "0", value: "0"},
	{set: "1", value: "1", on: true, bytes: 1e9},
	{set: " 1 ", value: "1", on: true, bytes: 1e9},
	{set: `"1"`, value: "1", on: true, bytes: 1e9},
	{set: ` '1'` + "\n", value: "1", on: true, bytes: 1e9},
	{set: `'"1"'`, value: "1", on: true, bytes: 1e9},
	{set: `" 1"`, value: " 1", bad: true, bytes: -1}, // spaces within quotes stay
	{set: `"/a b"`, value: "/a b", bad: true, bytes: -1},
	{set: "t", value: "t", on: true, bytes: -1},
	{set: "TRUE", value: "TRUE", on: true, bytes: -1},
	{set: "false", value: "false", bytes: -1},
	{set: "yes", value: "yes", bad: true, bytes: -1},
	{set: "on", value: "on", bad: true, bytes: -1},
	{set: "2", value: "2", bad: true, bytes: 2e9},
	{set: "0.5", value: "0.5", bad: true, bytes: 5e8},
	{set: "+5", value: "+5", bad: true, bytes: 5e9},
	{set: "-0", value: "-0", bad: true},
	{set: "1e-10", value: "1e-10", bad: true}, // less than a byte
	{set: "1e-9", value: "1e-9", bad: true, bytes: 1},
	{set: "4.6e9", value: "4.6e9", bad: true, bytes: 4.6e18},
	{set: "4.7e9", value: "4.7e9", bad: true, bytes: -1}, // over half of the largest number
	{set: "1e400", value: "1e400", bad: true, bytes: -1},
	{set: "-1", value: "-1", bad: true, bytes: -1},
	{set: "NaN", value: "NaN", bad: true, bytes: -1},
	{set: "Inf", value: "Inf", bad: true, bytes: -1},
	{set: "-Inf", value: "-Inf", bad: true, bytes: -1},
	{set: "infinity", value: "infinity", bad: true, bytes: -1},
	{set: "5GB", value: "5GB", bad: true, bytes: -1},
	{set: "5,0", value: "5,0", bad: true, bytes: -1},
	{set: "5 5", value: "5 5", bad: true, bytes: -1},
	{set: "\xff", value: "\xff", bad: true, bytes: -1},
}

func TestReaders(t *testing.T) {
	for _, v := range values {
		t.Setenv(name, v.set)
		require.Equal(t, v.value, Value(name), "%q", v.set)

		on, err := Bool(name)
		require.Equal(t, v.on, on, "%q", v.set)
		require.Equal(t, v.bad, err != nil, "%q: %v", v.set, err)
		require.Equal(t, v.on || v.bad, Asked(name), "%q", v.set)
		if err != nil {
			require.ErrorContains(t, err, name)
		}

		bytes, err := Gigabytes(name, 7)
		if v.bytes < 0 {
			require.ErrorContains(t, err, name, "%q", v.set)
			require.ErrorContains(t, err, "is not a number of gigabytes", "%q", v.set)
			require.Zero(t, bytes, "%q", v.set)
			continue
		}
		require.NoError(t, err, "%q", v.set)
		require.Equal(t, v.bytes, bytes, "%q", v.set)
	}
}
