package tiering

import (
	"io/fs"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
	"github.com/kvtier/kvtier/telemetry"
)

// embedding is the configuration of a model that makes embeddings.
type embedding struct{ oneLayer }

func (embedding) Uint(key string, _ ...uint32) uint32 {
	if key == "pooling_type" {
		return 1
	}
	return 0
}

// TestModelsThatAreOffAreReported: a model that is not tiered is one line, and the server's
// state says why for as long as it is loaded.
func TestModelsThatAreOffAreReported(t *testing.T) {
	for name, test := range map[string]struct {
		vars   map[string]string
		change func(*Model)
		want   telemetry.Obstacle
	}{
		"architecture": {nil, func(m *Model) { m.Architecture = "qwen25vl" }, telemetry.ObstacleModel},
		"embedding":    {nil, func(m *Model) { m.Architecture, m.Config = "bert", embedding{} }, telemetry.ObstacleEmbedding},
		"no file":      {nil, func(m *Model) { m.Path += ".gone" }, telemetry.ObstacleOther},
		"setting":      {map[string]string{"OLLAMA_KV_TIER_LOCAL_GB": "lots"}, func(*Model) {}, telemetry.ObstacleSetting},
		"root":         {map[string]string{"OLLAMA_KV_TIER_LOCAL": "/proc/kvtier"}, func(*Model) {}, telemetry.ObstacleOther},
	} {
		t.Run(name, func(t *testing.T) {
			vars := map[string]string{}
			root := serving(t, vars)
			if test.vars != nil {
				vars["OLLAMA_KV_TIERING"] = "1"
				for k, v := range test.vars {
					vars[k] = v
				}
				tierenvtest.Set(t, vars)
			}
			model := testModelAt(t)
			test.change(&model)
			log, lines := tierenvtest.Logger()
			_, _, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, log)
			require.Error(t, err)
			stop := notTiered(model, err, slog.New(slog.NewTextHandler(lines, nil)))
			defer stop()
			require.Contains(t, lines.String(), `msg="kv tier: off for this model" model=`+filepath.Base(model.Path)+" cause="+string(test.want)+" reason=")
			if test.vars != nil {
				return // nobody can collect there
			}
			state := collected(t, root, func(s telemetry.State) bool { return len(s.Processes) == 1 && len(s.Models) == 1 })
			require.Equal(t, test.want, state.Processes[0].Unstored.Cause)
			require.Equal(t, err.Error(), state.Processes[0].Unstored.Detail)
			require.EqualValues(t, 1, state.Models[0].Totals[telemetry.Series("ollama_kv_not_stored_total", "cause", string(test.want))])
		})
	}
	require.Equal(t, telemetry.ObstacleDenied, whyNot(refusal{telemetry.ObstacleSetting, fs.ErrPermission}))
}
