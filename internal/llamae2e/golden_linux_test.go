package llamae2e

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

var updateGolden = flag.Bool("update", false, "write the golden files of package llamastate")

// goldens are small models and settings whose slots are in llamastate/testdata, of one token
// and of goldenTokens, in a folder for each version of the format.
var goldens = map[string]struct {
	shape testmodel.Shape
	args  string
}{
	"full":       {testmodel.Shape{Arch: "llama"}, "-np 1"},
	"transposed": {testmodel.Shape{Arch: "llama"}, "-np 2 -fa off"},
	"q8_0":       {testmodel.Shape{Arch: "llama"}, "-np 1 -ctk q8_0 -ctv q8_0"},
	"rotated":    {testmodel.Shape{Arch: "llama", HeadDim: 64}, "-np 1 -ctk q8_0 -ctv q8_0"},
	"latent":     {testmodel.Shape{Arch: "deepseek2"}, "-np 1 -nr"},
	"window":     {testmodel.Shape{Arch: "gemma3", Window: 16, Layers: 6}, "-np 1"},
	"hybrid":     {testmodel.Shape{Arch: "lfm2", Layers: 6}, "-np 1"},
	"sections":   {testmodel.Shape{Arch: "qwen35"}, "-np 1"},
}

const goldenTokens = 40

// TestGoldenFiles saves slots of a stock server. With -update the files become the golden
// files of package llamastate; their rows differ from processor to processor, so that files
// are not compared here.
func TestGoldenFiles(t *testing.T) {
	for name, g := range goldens {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g.shape.Layers, g.shape.HeadDim = max(2, g.shape.Layers), max(32, g.shape.HeadDim)
			g.shape.Embed, g.shape.Heads, g.shape.KVHeads = 64, 2, 1
			s := start(t, llamatest.Options{Model: aModel(t, g.shape), Args: append(strings.Fields(g.args), "-c", "512", "--slot-save-path", dir)})
			for _, n := range []int{1, goldenTokens} {
				status, body := s.post("/completion", map[string]any{"prompt": someTokens(1, n), "n_predict": 0, "id_slot": 0})
				require.Equal(t, http.StatusOK, status, string(body))
				file := fmt.Sprintf("%s-%d.bin", name, n)
				status, body = s.post("/slots/0?action=save", map[string]string{"filename": file})
				require.Equal(t, http.StatusOK, status, string(body))
				content, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				require.Greater(t, len(content), 8)
				if *updateGolden {
					version := fmt.Sprintf("v%d", binary.LittleEndian.Uint32(content[4:]))
					require.NoError(t, os.WriteFile(filepath.Join("../../llamastate/testdata", version, file), content, 0o644))
				}
			}
		})
	}
}
