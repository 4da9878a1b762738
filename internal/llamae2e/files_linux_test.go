package llamae2e

import (
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
			shape := testmodel.Shape{Arch: arch}
			if arch == "gemma3" {
				shape.Window = 128
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
			requireSame(t, want, got, 0)
			again := s.complete(prompt, 8) // one token is computed
			require.Equal(t, want.Tokens, again.Tokens)
			log, err := os.ReadFile(s.log)
			require.NoError(t, err)
			require.Contains(t, string(log), "llama-server does not get all rows")
			s.Kill()
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
