package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sample = `{
  "machine": {"cpu": "Example", "cores": 2, "virtual": true},
  "versions": {"kvtier": "0.16.1+kvtier.0.1.0"},
  "settings": {"model": "a <small> model", "repetitions": 3},
  "ttft": {"points": [
    {"tokens": 1024, "stock": {"median": 2.1}, "restored": {"median": 0.019}, "restored_uncached": {"median": 0.03}, "speedup": 110},
    {"tokens": 8192, "stock": {"median": 29.4}, "restored": {"median": 0.066}, "restored_uncached": {"median": 0.1}, "speedup": 445}
  ]}
}`

func TestDraw(t *testing.T) {
	drawn, err := draw([]byte(sample))
	require.NoError(t, err)
	for _, want := range []string{
		"stock Ollama", "kvtier, restored", "page cache empty", "445× faster", "29.4 s", "66.0 ms", "8,192", ">100 ms<", ">10 s<",
		"Ollama 0.16.1 on a 2-core Example virtual machine.", "a &lt;small&gt; model", ` 480.0,106.0 "/>`, `points="111.0,238.0 480.0,`,
	} {
		require.Contains(t, string(drawn), want)
	}
}

// TestCommittedPicture: the picture in the documents is drawn from the report there.
func TestCommittedPicture(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	report, err := os.ReadFile(filepath.Join(docs, "bench", "cpu.json"))
	require.NoError(t, err)
	drawn, err := draw(report)
	require.NoError(t, err)
	picture, err := os.ReadFile(filepath.Join(docs, "ttft.svg"))
	require.NoError(t, err)
	require.Equal(t, string(drawn), string(picture), "run make plot")
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string][2]string{
		"measured with -quick":                  {`"repetitions": 3`, `"quick": true`},
		"it has 0 prompt lengths":               {`"points"`, `"none"`},
		"the times for 1024 tokens are not pos": {`0.019`, `0`},
		"invalid character":                     {`{`, `[[`},
	} {
		_, err := draw([]byte(strings.Replace(sample, change[0], change[1], 1)))
		require.ErrorContains(t, err, want)
	}
}
