//go:build cgo

package kvcachedtest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
)

// TestKvcachedsProcessesObeyOurTools: package segment reads the segment that kvcached's own code makes
// and keeps, and kvcached reads the limit that package segment sets.
func TestKvcachedsProcessesObeyOurTools(t *testing.T) {
	name := fmt.Sprintf("kvtier-test-kvcached-%d-process", os.Getpid())
	cmd := python(t, "testdata/process.py", fmt.Sprint(va))
	cmd.Env = append(cmd.Env, "KVCACHED_IPC_NAME="+name)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	start(t, cmd)
	answers := bufio.NewReader(out)
	answer := func() string {
		t.Helper()
		text, err := answers.ReadString('\n')
		require.NoError(t, err)
		return strings.TrimSpace(text)
	}
	require.Equal(t, name, answer())
	require.FileExists(t, segment.Dir+"/"+name)

	for _, limit := range []int64{va, 16 * mib, 1, segment.LimitMax} {
		require.NoError(t, segment.SetLimit(name, limit))
		_, err = fmt.Fprintf(in, "%d %d\n", used, kept)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(limit), answer())
		s, err := segment.Get(name)
		require.NoError(t, err)
		require.Equal(t, segment.Segment{Name: name, Limit: limit, InForce: limit, Used: used, Kept: kept, State: segment.Foreign}, s)
		all, err := segment.List()
		require.NoError(t, err)
		require.Contains(t, all, s)
	}
	require.Error(t, segment.SetLimit(name, 0))
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	noneLeft(t, name)
}
