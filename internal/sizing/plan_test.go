package sizing

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/pagedenv"
)

func given(v float64, unit string) Figure { return Figure{v, unit, Given, "--flag"} }

// eightB is the input of a model of 8 billion parameters.
func eightB(t *testing.T) Input {
	return Input{
		Model: "8b", Shape: shapeOf(t, model("llama", 32, 8, 128, nil)), Weights: Figure{4.9e9, Bytes, Read, "the file"},
		CacheType: "f16", Context: given(131072, Tokens), Slots: given(1, Count), PageTokens: 256, PagedCells: given(pagedenv.DefaultPageCells, Tokens),
		Encoded: Figure{1, Ratio, Computed, "not compressed"}, Written: Figure{600e12, Bytes, Assumed, "a common drive"},
	}
}

func steady(tokensPerSecond float64) func(begin, end int64) float64 {
	return func(begin, end int64) float64 { return float64(end-begin) / tokensPerSecond }
}

func names(settings []Setting) map[string]string {
	m := map[string]string{}
	for _, s := range settings {
		m[s.Name] = s.Value
	}
	return m
}

// Every figure of a plan, computed again by hand.
func TestPlanOf8B(t *testing.T) {
	in := eightB(t)
	in.VRAM, in.RAM, in.SSD = given(8e9, Bytes), given(32e9, Bytes), given(200e9, Bytes)
	in.TokensADay = given(2e6, TokensPerDay)
	in.Disk, in.Memory = Figure{640e6, BytesPerS, Measured, "now"}, Figure{5e9, BytesPerS, Measured, "now"}
	in.Compute, in.ComputeFrom = steady(900), Figure{Origin: Given, From: "--prefill-tps"}
	require.NoError(t, in.Check())
	p := Make(in)

	const token, whole = 131072.0, 131072.0 * 131072.0
	require.Equal(t, token, p.Token.Value)
	require.Equal(t, whole, p.Cells.Value)
	require.Equal(t, whole, p.Stored.Value)
	vram, ram, local := p.Places[0], p.Places[1], p.Places[2]
	require.Equal(t, 2.1e9, vram.Room.Value)
	require.Equal(t, math.Floor(2.1e9/token), vram.Tokens.Value)
	require.Equal(t, Assumed, vram.Tokens.Origin)
	require.Equal(t, math.Floor(32e9/token), ram.Tokens.Value)
	require.Equal(t, 200e9/whole, local.Conversations.Value)
	require.InDelta(t, token/640e6, local.TokenTime.Value, 1e-12)
	require.InDelta(t, token/5e9, ram.TokenTime.Value, 1e-12)
	require.Equal(t, math.Floor(20e9/token), p.Defaults[1].Tokens.Value)
	require.Zero(t, p.Defaults[0].Tokens.Value)

	require.Len(t, p.Lengths, 4)
	require.InDelta(t, 8192*token/640e6, p.Lengths[1].Restore.Value, 1e-9)
	require.InDelta(t, 8192.0/900, p.Lengths[1].Compute.Value, 1e-9)
	require.Equal(t, 256.0, p.BreakEven.Value)
	require.InDelta(t, 900*token, p.BreakEvenRead.Value, 1e-3)

	require.InDelta(t, 2e6*token, p.WrittenADay.Value, 1e-3)
	require.InDelta(t, 600e12/(2e6*token)/365.25, p.Life.Value, 1e-9)
	require.Equal(t, Assumed, p.Life.Origin)
	require.Equal(t, map[string]string{
		"OLLAMA_KV_TIERING": "1", "OLLAMA_NEW_ENGINE": "1", "OLLAMA_CONTEXT_LENGTH": "131072", "OLLAMA_KV_TIER_LOCAL_GB": "200",
		"OLLAMA_PAGED_ATTN": "1", "OLLAMA_PAGED_HOST_GB": "17.18",
	}, names(p.Settings))
	require.Contains(t, p.Systemd(), "[Service]\nEnvironment=\"OLLAMA_KV_TIERING=1\"\n")
}

// A figure that is not known is absent, and is not 0.
func TestPlanOfLittle(t *testing.T) {
	p := Make(eightB(t))
	require.Empty(t, p.Places)
	require.Nil(t, p.BreakEven)
	require.Nil(t, p.BreakEvenRead)
	require.False(t, p.NeverQuicker)
	require.Nil(t, p.Life)
	for _, l := range p.Lengths {
		require.Nil(t, l.Restore)
		require.Nil(t, l.Compute)
	}
	require.Equal(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_NEW_ENGINE": "1", "OLLAMA_CONTEXT_LENGTH": "131072"}, names(p.Settings))
	_, err := json.Marshal(p)
	require.NoError(t, err)
}

// A token that takes longer the later it is makes restoring quicker from some length on.
func TestBreakEven(t *testing.T) {
	in := eightB(t)
	in.Disk = given(100e6, BytesPerS) // 1.31 ms for a token
	in.ComputeFrom = Figure{Origin: Measured, From: "rates.json"}
	growing := func(begin, end int64) float64 { // 1 ms for a token, and 1 ms more at every 100,000
		middle := float64(begin+end-1) / 2
		return float64(end-begin) * (1e-3 + middle*1e-8)
	}
	in.Compute = growing
	p := Make(in)
	want := 0.0
	for n := int64(256); n <= 131072 && want == 0; n += 256 {
		if float64(n)*131072/100e6 <= growing(0, n) {
			want = float64(n)
		}
	}
	require.Positive(t, want)
	require.Equal(t, want, p.BreakEven.Value)
	require.Equal(t, Computed, p.BreakEven.Origin)

	in.Compute = steady(1e6)
	p = Make(in)
	require.True(t, p.NeverQuicker)
	require.Nil(t, p.BreakEven)

	in.Context = given(100, Tokens) // shorter than a page
	in.Compute = steady(10)
	require.Equal(t, 100.0, Make(in).BreakEven.Value)
}

// Tokens beyond a window cost less, on the card and in a restore.
func TestPlanOfWindows(t *testing.T) {
	in := eightB(t)
	in.Shape = shapeOf(t, model("gemma3", 34, 4, 256, ggml.KV{"attention.sliding_window": uint32(1024)}))
	in.VRAM, in.Weights = given(8e9, Bytes), given(3.3e9, Bytes)
	in.Context = given(100_000, Tokens)
	p := Make(in)
	const row = 4 * 256 * 2 * 2
	require.Equal(t, p.Restored.Value, p.StoredLlama.Value)
	require.Equal(t, math.Floor((8e9-3.3e9-1e9-29*row*(1024+512))/(5*row)), p.Places[0].Tokens.Value)
	require.Equal(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_CONTEXT_LENGTH": "100000"}, names(p.Settings))
}

func TestPlanOfAFullCard(t *testing.T) {
	in := eightB(t)
	in.VRAM, in.RAM, in.SSD = given(4e9, Bytes), given(8e9, Bytes), given(100e9, Bytes)
	in.Disk = given(1e9, BytesPerS)
	p := Make(in)
	require.Zero(t, p.Places[0].Tokens.Value)
	require.Zero(t, p.Places[0].Room.Value)
	require.Contains(t, p.Notes, "The weights do not fit in the video memory: some layers, and their K/V, are in the machine's memory.")
	require.Equal(t, "8", names(p.Settings)["OLLAMA_PAGED_HOST_GB"])
}

// No setting pages a model that cannot be paged, and OLLAMA_NEW_ENGINE=1 is set for those that the patched releases
// run on the llama.cpp runner without it.
func TestSettingsOfArchitectures(t *testing.T) {
	for architecture, want := range map[string]struct {
		engine string
		paged  bool
	}{"llama": {"1", true}, "qwen2": {"1", true}, "qwen3": {"", true}, "gemma3": {"", true}, "gemma2": {"", false}, "deepseek2": {"", false}} {
		in := eightB(t)
		in.Shape.Architecture = architecture
		in.VRAM, in.RAM, in.SSD = given(4e9, Bytes), given(8e9, Bytes), given(100e9, Bytes)
		p := Make(in)
		require.Equal(t, want.engine, names(p.Settings)["OLLAMA_NEW_ENGINE"], architecture)
		require.Equal(t, want.paged, names(p.Settings)["OLLAMA_PAGED_ATTN"] == "1", architecture)
	}
}

func TestPlanOfADiskThatWears(t *testing.T) {
	in := eightB(t)
	in.TokensADay, in.Written = given(10e6, TokensPerDay), given(150e12, Bytes)
	in.RAM, in.RAMPays = given(8e9, Bytes), true
	in.Encoded = Figure{0.5, Ratio, Measured, "by servers"}
	p := Make(in)
	require.InDelta(t, 150e12/(10e6*131072*0.5)/365.25, p.Life.Value, 1e-9)
	require.Equal(t, Computed, p.Life.Origin)
	require.Equal(t, "82.135", names(p.Settings)["OLLAMA_KV_TIER_WRITE_GB_PER_DAY"]) // 150 TB ÷ 5 ÷ 365.25
	require.Equal(t, "8", names(p.Settings)["OLLAMA_KV_TIER_RAM_GB"])
}
