package lab

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRestored(t *testing.T) {
	log := `time=2026-11-20T23:20:40.123Z level=INFO source=tiering.go:88 msg="kv tier: restored" slot=0 tokens=7936 shifted=256 prompt=8003 bytes="65 MB" from=local+remote took=43.125ms
[GIN] 2026/11/20 - 23:20:40 | 200 | 66ms | 127.0.0.1 | POST     "/api/generate"
`
	got, err := parseRestored(log)
	require.NoError(t, err)
	require.Equal(t, Restored{Tokens: 7936, Shifted: 256, Took: 43125 * time.Microsecond}, got)

	got, err = parseRestored(`msg="kv tier: on" local=/x pages=31 bytes="65 MB"`)
	require.NoError(t, err)
	require.Zero(t, got)

	_, err = parseRestored(`msg="kv tier: restored" slot=0 tokens=1 shifted=0 prompt=2 bytes=9kB from=local took=soon`)
	require.ErrorContains(t, err, "took=soon")
}

func TestPages(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"v1/f/ab/1.kvp", "v1/f/tails/cd/p/2.kvp", "v1/tmp/3.tmp", "v1/f/manifest.json"} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	pages, err := Pages(root)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(root, "v1/f/ab/1.kvp"), filepath.Join(root, "v1/f/tails/cd/p/2.kvp")}, pages)

	pages, err = Pages(filepath.Join(root, "none"))
	require.NoError(t, err)
	require.Empty(t, pages)
}

func TestSettle(t *testing.T) {
	root := t.TempDir()
	l := &Lab{options: Options{Root: root}}
	require.NoError(t, os.WriteFile(filepath.Join(root, "1.kvp"), nil, 0o600))
	require.NoError(t, l.Settle(context.Background(), PagesOf(PageTokens)))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.EqualError(t, l.Settle(ctx, PagesOf(PageTokens+1)), "waiting for 2 pages to be written, 1 are: context canceled")
}

func TestParseTierOff(t *testing.T) {
	require.Empty(t, parseTierOff(`msg="kv tier: on" local=/x`))
	require.Equal(t, `architecture "lfm2" is not supported yet`,
		parseTierOff(`level=WARN msg="kv tier: off for this model" model=sha256-1 reason="architecture \"lfm2\" is not supported yet"`+"\n"))
	require.Equal(t, "short", parseTierOff(`msg="kv tier: off for this model" model=x reason=short`))
}
