package tiering

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

func TestRAMBudget(t *testing.T) {
	for value, says := range map[string]string{"": "", "0": "", "1.5": `ram_budget="1.5 GB"`} {
		tierenvtest.Set(t, map[string]string{
			"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages"), "OLLAMA_KV_TIER_RAM_GB": value,
		})
		lines := make(chan string, 8)
		tiered, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
		require.NoError(t, err)
		line := <-lines
		if says == "" {
			require.NotContains(t, line, "ram")
		} else {
			require.Contains(t, line, says)
		}
		tiered.Close()
	}
	for _, value := range []string{"lots", "-1", "NaN", "1e300"} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_TIER_RAM_GB": value})
		log, _ := tierenvtest.Logger()
		_, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, log)
		require.ErrorContains(t, err, "OLLAMA_KV_TIER_RAM_GB")
		require.ErrorContains(t, err, value)
	}
}

// TestServer starts two processes, which print the name of their server.
func TestServer(t *testing.T) {
	const asked = "KVTIER_TEST_SERVER"
	if os.Getenv(asked) != "" {
		os.Stdout.WriteString("<" + server() + ">")
		return
	}
	child := func() string {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestServer$")
		cmd.Env = append(os.Environ(), asked+"=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out[:max(0, len(out)-len("PASS\n"))])
	}
	first := child()
	require.Contains(t, first, "<")
	require.Equal(t, first, child())
	require.NotContains(t, first, server(), "this process has another parent")
	if runtime.GOOS == "linux" {
		require.NotEmpty(t, startOf(os.Getpid()))
		require.NotEqual(t, startOf(1), startOf(os.Getpid()))
		require.NotContains(t, startOf(os.Getpid()), "\n")
		startOf(1 << 30) // no such process
	}
}
