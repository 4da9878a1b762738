package remote

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestPlain: requests that anybody can read are made where the address says so, in whatever place.
func TestPlain(t *testing.T) {
	for address, opens := range map[string]bool{
		"valkey://127.0.0.1:1": false, "s3://pages?endpoint=http://127.0.0.1:1": false,
		"valkey://127.0.0.1:1?prefix=plain=1": false, "valkey://127.0.0.1:1?prefix=explain%3D1": false,
		"valkeys://127.0.0.1:1": true, "unix:///s": true, "s3://pages?endpoint=https://127.0.0.1:1": true,
		"valkey://127.0.0.1:1?plain=1": true, "valkey://127.0.0.1:1/2?prefix=a&plain=1": true, "valkey://127.0.0.1:1?plain=1&prefix=a": true,
		"s3://pages?plain=1&endpoint=http://127.0.0.1:1": true,
	} {
		tr, err := Open(t.Context(), tierenv.Config{Address: address}, slog.New(slog.DiscardHandler))
		if !opens {
			require.ErrorIs(t, err, errPlain, address)
			continue
		}
		require.NoError(t, err, address)
		require.NoError(t, tr.Close())
	}
}
