package top

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/telemetry"
)

var update = flag.Bool("update", false, "write testdata")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got+"\n"), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got+"\n", "run go test ./internal/top -update, and look at the difference")
}

// trimmed is a frame without the spaces at the ends of lines, for files.
func trimmed(frame string) string {
	lines := strings.Split(frame, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

const evil = "\x1b]0;owned\x07\u202e漢字漢字漢字漢字漢字漢字漢字\x1b[31m<b>\n\tend"

// hostile has text that would control a terminal, and wide characters.
func hostile() telemetry.State {
	s := sampleState()
	s.Root = "/srv/" + evil
	s.Tiers[0].Name, s.Tiers[2].Down, s.Tiers[1].Quarantined, s.Tiers[1].Booked = evil, true, 3, 99*gb
	s.Models[0].Model.Name, s.Processes[0].Model.Name = evil, evil
	s.Prompts[39].Miss = &telemetry.Miss{Cause: telemetry.Cause(evil), Detail: evil, From: evil}
	return s
}

func wide() telemetry.State {
	s := sampleState()
	s.Models[0].Model.Name, s.Processes[0].Model.Name = "深度求索-漢字模型-👩‍🚀-e\u0301", "深度求索-漢字模型-👩‍🚀-e\u0301"
	s.Root = "/データ/キャッシュ/" + strings.Repeat("漢", 40)
	return s
}

func views() map[string]*model {
	empty := telemetry.State{Root: "/var/lib/ollama-kv", Live: true, At: now}
	stale := sampleState()
	stale.Live, stale.At = false, now.Add(-3*time.Hour)
	waiting := modelOf()
	waiting.setRoots([]string{"/var/lib/ollama-kv"})
	waiting.servers[0].take(telemetry.State{}, errors.New("open /var/lib/ollama-kv/telemetry/state.json: no such file or directory"))
	restarted := modelOf(sampleState())
	restarted.servers[0].take(telemetry.State{}, errors.New("connection refused"))
	several := modelOf(sampleState(), hostile(), empty)
	several.shown = 1
	several.held = []Held{{Name: evil, Used: -5, Limit: 0}, {Name: evil, Used: math.MaxInt64, Kept: math.MaxInt64, Limit: 1}}
	held := modelOf(sampleState())
	held.held = []Held{
		{Name: "qwen3:8b", Used: 1200 << 20, Limit: 18 << 30}, {Name: "a-model-with-a-long-name:70b-instruct-q4_K_M", Used: 3 << 30, Kept: 900 << 20, Limit: 4 << 30},
	}
	return map[string]*model{
		"sample": modelOf(sampleState()), "wide": modelOf(wide()), "hostile": several, "empty": modelOf(empty),
		"stale": modelOf(stale), "waiting": waiting, "restarted": restarted, "none": modelOf(), "held": held,
	}
}

func TestFrames(t *testing.T) {
	for name, m := range views() {
		for _, size := range [][2]int{{80, 24}, {40, 12}, {200, 60}} {
			golden(t, fmt.Sprintf("%s-%dx%d", name, size[0], size[1]), trimmed(m.frame(size[0], size[1])))
		}
	}
}

func TestASCII(t *testing.T) {
	m := modelOf(wide())
	m.style = newStyles(false, true)
	text := m.frame(80, 24)
	golden(t, "ascii-80x24", trimmed(text))
	for _, r := range text {
		require.Less(t, r, rune(0x7f))
	}
}

// Colors are escape sequences of lipgloss alone, and change no character.
func TestColors(t *testing.T) {
	for name, m := range views() {
		m.style = newStyles(true, false)
		colored := m.frame(80, 24)
		require.Contains(t, colored, "\x1b[", name)
		m.style = newStyles(false, false)
		require.Equal(t, m.frame(80, 24), ansi.Strip(colored), name)
		require.NotContains(t, m.frame(80, 24), "\x1b", name)
	}
}

// No frame is larger than its terminal, of any size and for any state.
func TestFramesFit(t *testing.T) {
	all := views()
	names := []string{"sample", "wide", "hostile", "empty", "stale", "waiting", "restarted", "none", "held"}
	require.Len(t, all, len(names))
	rapid.Check(t, func(r *rapid.T) {
		m := all[rapid.SampledFrom(names).Draw(r, "view")]
		m.style = newStyles(rapid.Bool().Draw(r, "color"), rapid.Bool().Draw(r, "ascii"))
		width, height := rapid.IntRange(1, 240).Draw(r, "width"), rapid.IntRange(1, 70).Draw(r, "height")
		lines := strings.Split(m.frame(width, height), "\n")
		require.LessOrEqual(r, len(lines), height)
		for _, line := range lines {
			require.LessOrEqual(r, ansi.StringWidth(line), width, line)
			require.NotContains(r, ansi.Strip(line), "\x1b")
			require.NotContains(r, line, "\x07")
			require.NotContains(r, line, "\u202e")
		}
	})
}

// A state comes over a socket or from a file, and may hold any numbers and texts.
func TestAnyState(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := sampleState()
		text := rapid.String()
		number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, math.MaxInt64}))
		s.Tiers[0].Name = text.Draw(r, "tier")
		s.Tiers[1].Booked, s.Tiers[1].Budget = number.Draw(r, "booked"), number.Draw(r, "budget")
		s.Tiers[1].Pages = int(number.Draw(r, "pages"))
		p := &s.Prompts[len(s.Prompts)-1]
		p.Tokens, p.RAM, p.Saved = int(number.Draw(r, "tokens")), int(number.Draw(r, "ram")), time.Duration(number.Draw(r, "saved"))
		p.Weights = text.Draw(r, "weights")
		for series := range s.Models[0].Totals {
			s.Models[0].Totals[series] = rapid.Float64().Draw(r, series)
		}
		s.Processes[0].Slots[0].ID = int(number.Draw(r, "slot"))
		s.At = now.Add(time.Duration(number.Draw(r, "at")))
		m := modelOf(s)
		for _, line := range strings.Split(m.frame(80, 24), "\n") {
			require.LessOrEqual(r, ansi.StringWidth(line), 80)
			require.NotContains(r, line, "\x1b")
		}
	})
}
