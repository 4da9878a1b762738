package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// benchCodecs returns a command that measures encodings on the shared model, and the directories
// that it may write to.
func benchCodecs(t *testing.T, args ...string) (cmd *exec.Cmd, dirs []string) {
	t.Helper()
	binary, err := ollamatest.FindBinary()
	if err != nil {
		t.Skipf("%v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte(prompt(t, 2000, 70)), 0o600))
	dirs = []string{t.TempDir(), t.TempDir()}
	program := filepath.Join(t.TempDir(), "codecs")
	out, err := exec.Command("go", "build", "-o", program, "../bench/codecs").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd = exec.Command(program, append([]string{"-model", shared.gguf, "-text", text,
		"-tokens", "512", "-scored", "256", "-threads", "1", "-dir", dirs[0]}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dirs[1], ollamatest.BinaryEnv+"="+binary)
	return cmd, dirs
}

// requireCleanUp: the directories are empty, and no process has an environment that names them.
func requireCleanUp(t *testing.T, dirs []string) {
	t.Helper()
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	require.Empty(t, processesWith(t, "TMPDIR="+dirs[1]))
}

// processesWith lists the processes that have an entry in their environment.
func processesWith(t *testing.T, entry string) (found []string) {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range environments {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains("\x00"+string(text), "\x00"+entry+"\x00") {
			found = append(found, path)
		}
	}
	return found
}

// TestBenchCodecs: rows without a loss give the probabilities of the engine that computed them, to
// the last bit; coarser rows give others.
func TestBenchCodecs(t *testing.T) {
	questions := filepath.Join(t.TempDir(), "questions")
	require.NoError(t, os.WriteFile(questions, []byte(`[{"question": " the", "answer": "no-such-word"}]`), 0o600))
	cmd, dirs := benchCodecs(t, "-json", "-questions", questions)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	type result struct {
		Encoding   string  `json:"encoding"`
		Lossless   bool    `json:"lossless"`
		Ratio      float64 `json:"ratio"`
		Decode     float64 `json:"decode_gb_per_s"`
		Cached     float64 `json:"restore_cached_gb_per_s"`
		Compared   int     `json:"compared"`
		KL         float64 `json:"kl"`
		Top1       float64 `json:"top1"`
		Perplexity float64 `json:"perplexity"`
		Asked      int     `json:"lookups"`
		Answered   int     `json:"lookups_answered"`
	}
	var results []result
	require.NoError(t, json.Unmarshal(out, &results))
	byName := map[string]result{}
	for _, r := range results {
		byName[r.Encoding] = r
		require.Greater(t, r.Compared, 200, r.Encoding)
		require.Positive(t, r.Decode, r.Encoding)
		require.Positive(t, r.Cached, r.Encoding)
		require.Greater(t, r.Perplexity, 1.0, r.Encoding)
		require.Equal(t, 1, r.Asked)
		require.Zero(t, r.Answered)
		if r.Lossless {
			require.Zero(t, r.KL, r.Encoding)
			require.Equal(t, 1.0, r.Top1, r.Encoding)
		}
	}
	require.Positive(t, byName["q8_0"].KL)
	require.Greater(t, byName["q4_0"].KL, 4*byName["q8_0"].KL)
	require.Less(t, byName["q4_0"].Top1, 1.0)
	require.Greater(t, byName["q8_0"].Ratio, byName["split"].Ratio)
	requireCleanUp(t, dirs)
}

// TestBenchCodecsIsInterrupted: Ctrl-C ends the engine, too.
func TestBenchCodecsIsInterrupted(t *testing.T) {
	cmd, dirs := benchCodecs(t)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		pages, _ := filepath.Glob(filepath.Join(dirs[0], "kvtier-codecs-*", "exact", "v1", "*", "*", "*.kvp"))
		return len(pages) > 0
	}, time.Minute, time.Millisecond, "an engine computes the text")
	require.NoError(t, cmd.Process.Signal(unix.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	requireCleanUp(t, dirs)
}

// TestBenchCodecsRefuses: a text that is too short is counted.
func TestBenchCodecsRefuses(t *testing.T) {
	cmd, dirs := benchCodecs(t, "-tokens", "4096")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "it has 2000 tokens; give a text of 4352 or more")
	requireCleanUp(t, dirs)
}
