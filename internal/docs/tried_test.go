package docs

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/llamatier/install"
)

// tried is all that documents may say to be tried. A new release or card is added here first.
var tried = struct {
	stock, pins, build string   // Ollama, the llama.cpp that it pins, and the one that tests build
	patched            []string // releases that tests run end to end
	cards              []string
	systemd            string
}{
	stock: "v" + install.Tried, pins: "b10969", build: "b10970",
	patched: []string{ollamasrc.DefaultVersion, ollamasrc.NewestVersion},
	cards:   []string{"H100", "H200"},
	systemd: "252",
}

// TestTriedReleases: sentences about tried releases name those of the table, and so does what tests build.
func TestTriedReleases(t *testing.T) {
	for path, says := range map[string][]string{
		readme: {
			"tested with " + tried.stock + " |", "tested with " + strings.Join(tried.patched, " and ") + ": ",
			"stock llama-server " + tried.build + ",", "with Ollama " + tried.stock + " in an empty Debian",
		},
		installation:                 {"Tried with Ollama " + tried.stock + " on Linux with systemd " + tried.systemd + ", on CPUs."},
		underLlama:                   {"Tried with Ollama " + tried.stock + " (llama.cpp " + tried.build + ") on Linux, on a CPU;", "| " + tried.stock + " | " + tried.pins + ", tried with " + tried.build + " | version 3 | all tests |"},
		models:                       {"tested on " + tried.patched[1] + "."},
		"docs/benchmarks.md":         {"A stock llama-server " + tried.build + " takes"},
		"scripts/build-llama-server": {"ollama=" + tried.stock + "\n", "llama=" + strings.TrimPrefix(tried.build, "b") + ".0.0\n", "to " + tried.pins + ", which this Ollama pins"},
	} {
		for _, words := range says {
			require.Contains(t, read(t, path), words, path)
		}
	}
	all := append(slices.Clone(tried.patched), tried.stock)
	for _, path := range documents(t) {
		for _, version := range matches(`(?i)(?:tried|tested) (?:with|on) (?:Ollama )?(v\d+\.\d+\.\d+)`, read(t, path)) {
			require.Contains(t, all, version, path)
		}
		for _, build := range matches(`(?i)tried with (?:llama\.cpp )?(b\d{4,5})`, read(t, path)) {
			require.Equal(t, tried.build, build, path)
		}
	}
}

// card matches names of NVIDIA's cards.
const card = `\b([ABHLTV]\d{2,3}|[RG]TX ?\d+)\b`

// TestTriedCards: documents name the cards of the table alone, as NVIDIA's, and say of the rest that it is not tried.
func TestTriedCards(t *testing.T) {
	for _, path := range []string{readme, "CHANGELOG.md", "docs/gpu.md"} {
		require.Equal(t, tried.cards, matches(card, read(t, path)), path)
	}
	for _, path := range documents(t) {
		if strings.HasPrefix(path, "docs/") {
			require.Subset(t, tried.cards, matches(card, read(t, path)), path)
		}
		require.NotRegexp(t, `(?i)wait for a card|on CPUs only|GPUs? (?:are|is) not measured`, read(t, path), path)
	}
	require.Contains(t, read(t, readme), "passed on an NVIDIA "+strings.Join(tried.cards, " and an NVIDIA ")+"; other cards, and llama-server on a GPU, are not tried.")
	require.Contains(t, read(t, "CHANGELOG.md"), "llama-server on a GPU, NVIDIA cards other than "+strings.Join(tried.cards, " and ")+",")
	require.Contains(t, read(t, underLlama), "Not tried: GPUs, macOS.")
	columns := slices.Clone(tried.cards)
	slices.Reverse(columns)
	require.Contains(t, section(t, read(t, "docs/gpu.md"), "## On a card"), "| | "+strings.Join(columns, " | ")+" |\n")
}

// TestLeftOut: the page about options that are left out is linked from the first page.
func TestLeftOut(t *testing.T) {
	require.Contains(t, read(t, readme), "](docs/left-out.md)")
	for _, asked := range []string{"semantic index", "turbo4", "precision for each layer", "FIFO", "dropping tokens", "total-ctx", "warm-device"} {
		require.Contains(t, read(t, "docs/left-out.md"), asked)
	}
}
