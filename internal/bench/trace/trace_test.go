package trace

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const lines = `{"timestamp": 40, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}

{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 2], "more": {}}
`

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	want := []Request{{Tokens: 600, Blocks: []int32{0, 2}}, {At: 0.04, Tokens: 1024, Blocks: []int32{0, 1}}}
	for _, text := range []string{lines, strings.TrimSpace(lines), packed(t, lines)} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		requests, err := Read(path)
		require.NoError(t, err)
		require.Equal(t, want, requests)
	}
	require.Equal(t, []int32{0}, want[0].Whole())
	require.Equal(t, []int32{0, 1}, want[1].Whole())
	require.Equal(t, []int32{0}, want[1].Known(), "the last token is computed")
	_, err := Read(path + "s")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestHostileLines(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "EOF",
		"\n":                     "EOF",
		gzipMagic:                "EOF",
		gzipMagic + "0123456789": "gzip",
		packed(t, ""):            "EOF",
		packed(t, lines)[:40]:    "unexpected EOF",
		lines + "{":              "request 2: unexpected EOF",
		lines + "null":           "request 2 has no blocks",
		lines + "[]":             "request 2: json: cannot unmarshal array",
		`{"timestamp": 0}`:       "request 0 has no blocks",
		`{"timestamp": -1, "input_length": 1, "hash_ids": [0]}`:        "request 0 is at -1 ms",
		`{"timestamp": 1e300, "input_length": 1, "hash_ids": [0]}`:     "request 0 is at 1e+300 ms",
		`{"timestamp": "now", "input_length": 1, "hash_ids": [0]}`:     "cannot unmarshal string",
		`{"input_length": 0, "hash_ids": [0]}`:                         "request 0 has 0 tokens in 1 blocks of 512",
		`{"input_length": -9223372036854775808, "hash_ids": [0]}`:      "tokens in 1 blocks",
		`{"input_length": 512, "hash_ids": [0, 1]}`:                    "request 0 has 512 tokens in 2 blocks of 512",
		`{"input_length": 512, "hash_ids": [2147483648]}`:              "cannot unmarshal number 2147483648",
		`{"input_length": 512, "hash_ids": [0.5]}`:                     "cannot unmarshal number 0.5",
		`{"input_length": 512, "hash_ids": 0}`:                         "cannot unmarshal number",
		`{"input_length": 5120000000000000000000000, "hash_ids": [0]}`: "cannot unmarshal number",
	} {
		_, err := read(strings.NewReader(text))
		require.ErrorContains(t, err, want, text)
	}
}
