package ollamatest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServerEndsWithTheProcessThatStartedIt(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), fakeEnv+"="+fakeParent)
	stdout, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	var tempDir string
	_, scanErr := fmt.Fscan(stdout, &pid, &tempDir)
	require.NoError(t, parent.Process.Kill())
	parent.Wait() //nolint:errcheck // it was killed
	require.NoError(t, scanErr)
	t.Cleanup(func() { os.RemoveAll(tempDir) })

	require.NoError(t, poll(testContext(t), "the server and its runner to end", func() (bool, error) {
		left, err := family(pid)
		return len(left) == 0, err
	}))
}
