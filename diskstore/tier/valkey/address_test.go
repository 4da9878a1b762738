package valkey

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddresses(t *testing.T) {
	for text, want := range map[string]struct {
		shown, user, password, prefix string
		db                            int
	}{
		"valkey://h":                           {"valkey://h:6379/0", "", "", "kvtier:", 0},
		"redis://h:1/":                         {"valkey://h:1/0", "", "", "kvtier:", 0},
		"valkey://u:p%2F%23@h:1/7?prefix=a%3A": {"valkey://h:1/7", "u", "p/#", "a:", 7},
		"rediss://:p@[::1]/2":                  {"valkeys://[::1]:6379/2", "", "p", "kvtier:", 2},
		"valkeys://u@h:1":                      {"valkeys://h:1/0", "u", "", "kvtier:", 0},
		"unix://u:p@/run/s?db=4&prefix=":       {"unix:///run/s", "u", "p", "", 4},
	} {
		a, err := parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want.shown, a.String())
		require.Equal(t, []any{want.user, want.password, want.prefix, want.db}, []any{a.user, a.password, a.prefix, a.db}, text)
	}
	for _, text := range []string{
		"", "h:6379", "http://h", "valkey://", "valkey:h", "valkey://h/x", "valkey://h/-1", "valkey://h/1/2", "valkey://h:x", "valkey://h?max=1", "valkey://h?prefix=%zz",
		"valkey://u:sec/ret@h", "valkey://u:12#ret@h", "valkey://u:12?ret@h", "valkey://u:12/34@h", "valkey://u:se%cret@h", "valkey://u:sec ret@h\x7f",
	} {
		_, err := Open(text, Options{})
		require.Equal(t, errAddress, err, text)
	}
}
