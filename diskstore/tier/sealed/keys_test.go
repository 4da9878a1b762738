package sealed

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadKeys(t *testing.T) {
	secret := func(n byte) []byte { return bytes.Repeat([]byte{n}, keyBytes) }
	one, two := hex.EncodeToString(secret(1)), base64.StdEncoding.EncodeToString(secret(2))
	path := filepath.Join(t.TempDir(), "team.key")
	read := func(text string) (Keys, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return ReadKeys(path)
	}
	for _, text := range []string{one, one + "\n", "# of the team\r\n\r\n " + strings.ToUpper(one) + " \r\n"} {
		keys, err := read(text)
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.Equal(t, keyOf(1).id, keys[0].id)
	}
	keys, err := read(two + "\n" + one + "\n")
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Equal(t, keyOf(2).id, keys[0].id, "the first one seals")
	require.NotContains(t, fmt.Sprintf("%v %+v", keys, keys), "1 1 1 1", "nobody prints a secret by mistake")

	for text, why := range map[string]string{
		"":                 "openssl rand",
		"# nothing\n":      "openssl rand",
		one[:62] + "\n":    "line 1",
		"#\n" + one + "00": "line 2",
		one + "\nsecret":   "line 2",
		one + "\n" + one:   "remove the line",
		one + "\n" + two + "\n" + hex.EncodeToString(secret(3)): "3 keys",
		strings.Repeat("#\n", keyFileMost):                      "more than",
	} {
		_, err := read(text)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), one[:16])
	}
	_, err = ReadKeys(path + "s")
	require.ErrorIs(t, err, os.ErrNotExist)
}
