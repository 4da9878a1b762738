package main

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sample = `{
  "schema": 1,
  "machine": {"cpu": "Example", "cores": 2, "virtual": true},
  "versions": {"kvtier": "0.16.1+kvtier.0.1.0"},
  "settings": {"model": "qwen3", "repetitions": 3},
  "ttft": {"points": [
    {"tokens": 1024, "stock": {"median": 2.1}, "restored": {"median": 0.019}, "restored_uncached": {"median": 0.03}, "speedup": 110},
    {"tokens": 8192, "stock": {"median": 29.4}, "restored": {"median": 0.066}, "restored_uncached": {"median": 0.1}, "speedup": 445}
  ]}
}`

func save(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDraw(t *testing.T) {
	input, dir := save(t, sample), t.TempDir()
	svg, raster := filepath.Join(dir, "p.svg"), filepath.Join(dir, "p.png")
	if err := run(input, []string{svg, raster}); err != nil {
		t.Fatal(err)
	}
	drawn, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"stock Ollama", "kvtier, restored", "page cache empty", "445× faster", "29 s", "66 ms", "8,192", "prompt, tokens", "time to first token",
		"Ollama 0.16.1 on a 2-core Example virtual machine.", "Arial",
	} {
		if !strings.Contains(string(drawn), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	data, err := os.ReadFile(raster)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string][2]string{
		"it has schema 2":                       {`"schema": 1`, `"schema": 2`},
		"measured with -quick":                  {`"repetitions": 3`, `"quick": true`},
		"it has 0 prompt lengths":               {`"points"`, `"none"`},
		"the times for 1024 tokens are not pos": {`0.019`, `0`},
		"invalid character":                     {`{`, `[[`},
	} {
		path := save(t, strings.Replace(sample, change[0], change[1], 1))
		if _, err := readReport(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	if err := run(save(t, sample), []string{"p.gif"}); err == nil || !strings.Contains(err.Error(), "only .svg and .png") {
		t.Errorf("got error %v for a .gif", err)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0.0191: "19 ms", 0.0042: "4.2 ms", 0.1: "100 ms", 1: "1 s", 2.14: "2.1 s", 29.4: "29 s", 100: "100 s"} {
		if got := seconds(v); got != want {
			t.Errorf("seconds(%v) = %q, want %q", v, got, want)
		}
	}
	if got := count(131072); got != "131,072" {
		t.Errorf("count(131072) = %q", got)
	}
}
