package llamae2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// filesVariable names the kind of files through which slots are saved and restored.
const filesVariable = "KVTIER_LLAMA_FILES"

// kindsOfFiles are the kinds besides memory, which small models have without the variable.
func kindsOfFiles(t *testing.T) []string {
	if device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
		device.Close()
		return []string{"disk", "stream", "parts"}
	}
	t.Log("FUSE cannot be used")
	return []string{"disk"}
}

// TestFilesOfEveryKind: conversations come back as through files in memory, and nothing is left
// of the files.
func TestFilesOfEveryKind(t *testing.T) {
	for _, kind := range kindsOfFiles(t) {
		for _, c := range conversations {
			switch c.name {
			case "f16", "without flash attention", "four unified slots", "window", "convolutions":
			default:
				continue
			}
			t.Run(kind+" "+c.name, func(t *testing.T) {
				dir := t.TempDir()
				o := c.options(t)
				stock := start(t, o)
				turns := c.hold(stock)
				stock.Kill()
				o.Root, o.Env = filepath.Join(t.TempDir(), "pages"), []string{filesVariable + "=" + kind, "TMPDIR=" + dir}
				for _, turn := range turns {
					s := start(t, o)
					got := c.say(s, turn.prompt, nil)
					require.Equal(t, turn.cached, got.Timings.Cached)
					if !turn.moved {
						requireSame(t, turn.answer, got, 0)
					}
					s.Kill()
				}
				require.Eventually(t, func() bool { // the daemon may outlive its engine for a moment
					mine, _ := filepath.Glob(filepath.Join(dir, "kvtier-llama-*"))
					local, _ := filepath.Glob(filepath.Join(o.Root, "llama-server", "kvtier-llama-*"))
					return len(mine)+len(local) == 0
				}, time.Minute, 5*time.Millisecond)
			})
		}
	}
}

// TestARestoreThatBreaksOff: a page is damaged, which shows when llama-server has read most of the
// stream. The rows that it has are gone, and the prompt is computed.
func TestARestoreThatBreaksOff(t *testing.T) {
	if len(kindsOfFiles(t)) < 2 {
		t.Skip("FUSE cannot be used")
	}
	for _, arch := range []string{"llama", "gemma3", "lfm2"} {
		t.Run(arch, func(t *testing.T) {
			shape, bound := testmodel.Shape{Arch: arch}, 0.001 // the prompt is computed in steps
			switch arch {
			case "gemma3":
				shape.Window, bound = 128, 0.05
			case "llama":
				bound = 0
			}
			plain := llamatest.Options{Model: aModel(t, shape), Args: strings.Fields("-c 4096 -np 2")}
			o := plain
			o.Root, o.Env = filepath.Join(t.TempDir(), "pages"), []string{filesVariable + "=parts"}
			s := start(t, o)
			prompt := someTokens(1, 700)
			prompt = slices.Concat(prompt, s.complete(prompt, 8).Tokens, someTokens(2, 100))
			s.Kill()
			stock := start(t, plain)
			want := stock.complete(prompt, 8)
			stock.Kill()

			damage(t, o.Root)
			s = start(t, o)
			got := s.complete(prompt, 8)
			require.Zero(t, got.Timings.Cached)
			requireSame(t, want, got, bound)
			again := s.complete(prompt, 8) // one token is computed
			require.Equal(t, want.Tokens, again.Tokens)
			require.Contains(t, s.killed(), "llama-server does not get all rows")
		})
	}
}

// damage changes a byte of the last section of each page.
func damage(t *testing.T, root string) {
	require.Positive(t, pages(t, root))
	eachPage(t, root, func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[len(b)-pagefile.FooterBytes-pagefile.PageAlign]++
		return os.WriteFile(path, b, 0o600)
	})
}

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
				s.ask("/completion", map[string]any{"prompt": someTokens(1, n), "n_predict": 0, "id_slot": 0})
				file := fmt.Sprintf("%s-%d.bin", name, n)
				require.NoError(t, s.Slot(t.Context(), "save", file))
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

// TestKeys: conversations come back under a server that asks for a key, and a client without the
// key is refused as by the stock server.
func TestKeys(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama"}), Args: strings.Fields("-c 2048 -np 1 --api-key other,right")}
	ask := func(s *server, key string) (int, []byte) {
		body, err := json.Marshal(map[string]any{"prompt": someTokens(1, 600), "n_predict": 3, "temperature": 0})
		require.NoError(t, err)
		req, err := http.NewRequest(http.MethodPost, s.URL+"/completion", bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := llamatest.Client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, b
	}
	s := start(t, o)
	stock, refusal := ask(s, "wrong")
	require.Equal(t, http.StatusUnauthorized, stock)
	s.Kill()

	o.Root = filepath.Join(t.TempDir(), "pages")
	s = start(t, o)
	status, _ := ask(s, "right")
	require.Equal(t, http.StatusOK, status)
	s.Kill()
	s = start(t, o)
	status, body := ask(s, "wrong")
	require.Equal(t, stock, status)
	require.Equal(t, string(refusal), string(body))
	status, body = ask(s, "right")
	require.Equal(t, http.StatusOK, status)
	var a answer
	require.NoError(t, json.Unmarshal(body, &a))
	require.Greater(t, a.Timings.Cached, 500)
}
