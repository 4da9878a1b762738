//go:build unix

package front

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// TestAnother: the real llama-server is beside this program, or where systemd mounts
// Ollama's folder. It is never this program.
func TestAnother(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("llama-server"), nil, 0o700))
	_, err := another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "set KVTIER_LLAMA_SERVER to its path")

	require.NoError(t, os.Link(at("llama-server"), at("mounted")))
	_, err = another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.ErrorContains(t, err, "mounted is this program")

	require.NoError(t, os.Remove(at("mounted")))
	require.NoError(t, os.WriteFile(at("mounted"), nil, 0o700))
	path, err := another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.NoError(t, err)
	require.Equal(t, at("mounted"), path)

	require.NoError(t, os.WriteFile(at("llama-server-real"), nil, 0o700))
	path, err = another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.NoError(t, err)
	require.Equal(t, at("llama-server-real"), path)
}

// TestAKey: the first one, as llama-server reads them. A pipe is left to llama-server.
func TestAKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	key := func(args ...string) string { return aKey(launch.Command{Args: args}) }
	require.Empty(t, key("-m", "x"))
	require.Equal(t, "a", key("--api-key", "a,b"))
	require.Empty(t, key("--api-key-file", path))
	require.NoError(t, os.WriteFile(path, []byte("# keys\n\nfirst\nsecond\n"), 0o600))
	require.Equal(t, "first", key("--api-key-file", path))
	require.Equal(t, "a", key("--api-key-file", path, "--api-key", "a"))
	require.NoError(t, os.Remove(path))
	require.NoError(t, unix.Mkfifo(path, 0o600))
	require.Empty(t, key("--api-key-file", path))
}

// TestALogThatHangs holds nobody up: lines past the queue are dropped and counted.
func TestALogThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, unix.Mkfifo(path, 0o600)) // nobody reads: it cannot be opened
	l := newLog(path)
	const extra = 100
	for i := range logLinesMax + extra {
		_, err := fmt.Fprintf(l, "line %d\n", i)
		require.NoError(t, err)
	}
	dropped := l.dropped.Load()
	require.GreaterOrEqual(t, dropped, int64(extra-1), "one line may be on its way")
	l.end(0)

	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); len(lines) < logLinesMax+extra-int(dropped)+1 && s.Scan(); {
		lines = append(lines, s.Text())
	}
	require.Equal(t, "line 0", lines[0])
	require.Contains(t, strings.Join(lines, "\n"), fmt.Sprintf("lines=%d", dropped))
}

// TestALongLogIsSetAside, also while the daemon runs.
func TestALongLogIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "log")
	l := newLog(path)
	line := []byte(strings.Repeat("x", 2*logLineMax) + "\n")
	for len(l.lines) > 0 || !exists(path+".1") {
		if len(l.lines) == 0 {
			_, _ = l.Write(line)
		}
	}
	_, _ = l.Write([]byte("last\n"))
	l.end(time.Hour)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(b), "last\n"))
	require.Less(t, len(b), logMax)
	old, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	require.Less(t, len(old), logMax+2*logLineMax)
	require.Zero(t, len(old)%logLineMax, "long lines are cut")
	require.Zero(t, l.dropped.Load())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestNoLog: a log that cannot be opened ends nothing.
func TestNoLog(t *testing.T) {
	for _, path := range []string{"", t.TempDir(), "/proc/none/log"} {
		l := newLog(path)
		_, err := l.Write([]byte("line\n"))
		require.NoError(t, err)
		l.end(time.Hour)
		require.Equal(t, int64(1), l.dropped.Load())
	}
}

// TestALineBehindTheEnd: a flush that is left behind, and connections that end, write lines while
// the process ends.
func TestALineBehindTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := newLog(path)
	_, err := l.Write([]byte("first\n"))
	require.NoError(t, err)
	l.end(time.Hour)
	require.NotPanics(t, func() { _, err = l.Write([]byte("late\n")) })
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "first\n", string(b))
}
