package sizing

import (
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"
)

// onlyEngine is a plan's elastic memory or paged attention.
func onlyEngine(t *testing.T, in Input) Engine {
	t.Helper()
	require.NoError(t, in.Check())
	p := Make(in)
	require.Len(t, p.Engines, 1)
	return p.Engines[0]
}

// A plan has them where the settings, or the plan's own, ask for them.
func TestEnginesThatArePlanned(t *testing.T) {
	in := eightB(t)
	require.Empty(t, Make(in).Engines)

	in.VRAM, in.RAM, in.Elastic = given(8e9, Bytes), given(32e9, Bytes), true
	e := onlyEngine(t, in)
	require.Equal(t, "paged attention", e.Name, "the K/V does not fit in the video memory")
	require.Equal(t, Make(in).Cells.Value, e.Memory.Value)
	require.Equal(t, e.Tensors.Value*131072, e.Video.Value)
	in.PagedAfter = given(0, Tokens)
	require.Equal(t, 2.1e9-512<<20, onlyEngine(t, in).Video.Value, "what the model leaves, less the reserve")
	in.PagedAfter = Figure{}
	require.Equal(t, "0", names(Make(in).Settings)["OLLAMA_KVCACHED"])

	in.RAM, in.Paged = Figure{}, true
	p := Make(in)
	require.Len(t, p.Engines, 2)
	for _, e := range p.Engines {
		require.Contains(t, e.Otherwise, "no model is loaded")
	}
}

// K/V is in tensors as long as a card has room for them beside the model, or as a variable says.
func TestTensorsBeforePages(t *testing.T) {
	in := eightB(t)
	in.Paged = true
	require.Nil(t, onlyEngine(t, in).Tensors, "no card is known")

	in.VRAM = given(8e9, Bytes)
	room := Make(in).Places[0].Room.Value
	got := onlyEngine(t, in).Tensors.Value
	require.Zero(t, int64(got)%256)
	require.InDelta(t, 0.95*room/131072, got, 256)
	in.PagedAfter = given(5000, Tokens)
	require.Equal(t, 4864.0, onlyEngine(t, in).Tensors.Value)
	in.PagedAfter = given(1e6, Tokens)
	require.Equal(t, in.Context.Value, onlyEngine(t, in).Tensors.Value)
	in.Context = given(5000, Tokens)
	require.Equal(t, 5000.0, onlyEngine(t, in).Tensors.Value, "nothing is in pages")

	in.PagedAfter, in.VRAM = Figure{}, given(80e9, Bytes)
	e := onlyEngine(t, in)
	require.Equal(t, in.Context.Value, e.Tensors.Value)
	require.Contains(t, e.Tensors.From, "nothing is in pages")
	in.VRAM = given(1e9, Bytes)
	require.Zero(t, onlyEngine(t, in).Tensors.Value, "the model has no room")
}

// The memory of paged attention is that of its variable, else HOT, else a default; of a page K and V fill whole
// blocks of the disk.
func TestPagedEngine(t *testing.T) {
	in := eightB(t)
	in.Paged = true
	const whole, page = 131072.0 * 131072, 2048 * 8 * 128 * 2 * 2
	e := onlyEngine(t, in)
	require.Equal(t, 2048.0, e.Page.Value)
	require.EqualValues(t, page, e.PageBytes.Value)
	require.Equal(t, "f16", e.ColdType)
	require.Nil(t, e.Video, "no card is known")
	require.Equal(t, 8e9, e.Memory.Value)
	require.Equal(t, Assumed, e.Memory.Origin)

	in.Hot, in.PagedVRAM = given(0.25, Ratio), given(1e9, Bytes)
	e = onlyEngine(t, in)
	require.Equal(t, whole/4, e.Memory.Value)
	require.Equal(t, 1e9, e.Video.Value)
	in.Hot = given(0, Ratio)
	require.EqualValues(t, 2*page, onlyEngine(t, in).Memory.Value, "the pager needs two pages")
	in.PagedHost = given(3e9, Bytes)
	require.Equal(t, 3e9, onlyEngine(t, in).Memory.Value)

	in.VRAM, in.PagedAfter = given(80e9, Bytes), given(0, Tokens)
	require.Equal(t, 1e9, onlyEngine(t, in).Video.Value, "of copies")
	in.PagedAfter = Figure{}
	require.Equal(t, whole, onlyEngine(t, in).Video.Value, "all of it is in tensors")
	in.PagedVRAM = Figure{}
	require.Equal(t, whole, onlyEngine(t, in).Video.Value, "the K/V that there is")

	in.Shape, in.PagedCells = shapeOf(t, model("qwen3", 2, 1, 32, nil)), given(16, Tokens)
	require.EqualValues(t, 2*4096, onlyEngine(t, in).PageBytes.Value)
	in.Shape = shapeOf(t, model("nemotron_h", 4, 2, 128, ggml.KV{
		"attention.head_count_kv": []uint32{0, 0, 0, 2}, "ssm.inner_size": uint32(4096), "ssm.state_size": uint32(128),
		"ssm.conv_kernel": uint32(4), "ssm.group_count": uint32(8),
	}))
	require.Positive(t, Make(in).StateLayers.Value)
	require.NotNil(t, onlyEngine(t, in).Page, "the layers with attention of a hybrid")
	in.Shape = shapeOf(t, model("gemma2", 32, 8, 128, nil))
	e = onlyEngine(t, in)
	require.Nil(t, e.Page)
	require.Nil(t, e.Memory)
	require.Equal(t, "a model of this architecture is loaded without", e.Otherwise)
}

// Elastic memory has a limit by its variable, by HOT, or by the context; layers with a window are not elastic.
func TestElasticEngine(t *testing.T) {
	in := eightB(t)
	in.Elastic, in.Cold = true, "q8_0,q4_0"
	const whole = 131072.0 * 131072
	e := onlyEngine(t, in)
	require.Equal(t, 256.0, e.Page.Value)
	require.Equal(t, 256*131072.0, e.PageBytes.Value)
	require.Equal(t, "f16, remote q8_0,q4_0", e.ColdType)
	require.Equal(t, whole, e.Memory.Value)
	in.Hot = given(0, Ratio)
	require.Equal(t, whole, onlyEngine(t, in).Memory.Value, "a HOT of 0 sets no limit")
	in.Hot, in.VRAM = given(0.25, Ratio), given(8e9, Bytes)
	e = onlyEngine(t, in)
	require.Equal(t, whole/4, e.Memory.Value)
	require.Equal(t, 2.1e9, e.Video.Value)
	in.ElasticLimit = given(1<<30, Bytes)
	e = onlyEngine(t, in)
	require.EqualValues(t, 1<<30, e.Memory.Value)
	require.EqualValues(t, 1<<30, e.Video.Value)

	in.Shape = shapeOf(t, model("gemma3", 34, 4, 256, ggml.KV{"attention.sliding_window": uint32(1024)}))
	e = onlyEngine(t, in)
	require.Equal(t, 256.0*5*4*256*2*2, e.PageBytes.Value)
	require.Equal(t, "f16", e.ColdType, "a window has no lossy pages")
}
