//go:build unix

package collect

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const nobody = 65534

// filesEnv has the paths that a stranger tries to read.
const filesEnv = "KVTIER_COLLECT_FILES"

// stranger is another user that tries everything, and prints how far it came.
func stranger(root string) {
	dir := filepath.Join(root, directoryName)
	if _, err := Read(context.Background(), root); err == nil {
		fmt.Println("it read the state")
	}
	if _, err := ReadWords(context.Background(), root, ""); err == nil {
		fmt.Println("it read words")
	}
	for _, path := range strings.Split(os.Getenv(filesEnv), "\n") {
		if data, err := os.ReadFile(path); err == nil {
			fmt.Println("it read", path, len(data))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err == nil {
		fmt.Println("it wrote a file")
	}
	if place, err := newPlace(root); err != nil || place.fold() == nil {
		fmt.Println("it could add to the totals", err)
	}
	fmt.Println("it tried")
}

// asNobody runs a child as another user.
func asNobody(t *testing.T, role, root string) string {
	// The test's own executable is in a directory that only its user may enter.
	own, err := os.MkdirTemp("", "kvtier-stranger-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(own) })
	require.NoError(t, os.Chmod(own, 0o755))
	program := filepath.Join(own, "stranger")
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, data, 0o755))
	cmd := exec.Command(program)
	cmd.Dir = "/"
	files, err := filepath.Glob(filepath.Join(root, directoryName, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	cmd.Env = []string{roleEnv + "=" + role, rootEnv + "=" + root, filesEnv + "=" + strings.Join(files, "\n")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestAnotherUserReadsNothing: not through the directories, and where their modes were changed, not the
// files.
func TestAnotherUserReadsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a process as another user")
	}
	above, err := os.MkdirTemp("", "kvtier-users-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(above) })
	require.NoError(t, os.Chmod(above, 0o755))
	root := filepath.Join(above, "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	s := siteAt(t, root)
	p := s.process(1)
	p.prompt(1)
	p.push()
	s.awaitTotal(1)
	require.Equal(t, "it tried\n", asNobody(t, roleStranger, root))
	for _, path := range []string{root, s.dir} {
		require.NoError(t, os.Chmod(path, 0o755))
	}
	require.Equal(t, "it tried\n", asNobody(t, roleStranger, root))
	require.Len(t, s.read().Processes, 1)
}

// TestRootReadsForOthers: a reader that is root may read the state of a service's user, and changes
// nothing there.
func TestRootReadsForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}
	s := newSite(t)
	p := s.process(1)
	p.count(1)
	p.end()
	names := s.names()
	for _, path := range append([]string{"."}, names...) {
		require.NoError(t, os.Chown(s.path(path), nobody, nobody))
	}
	require.NoError(t, os.Chown(s.root, nobody, nobody))
	require.Equal(t, 1.0, total(s.read(), promptsTotal))
	require.Equal(t, names, s.names())
	require.Error(t, s.fold())
	require.Error(t, s.process(2).try(true))
	require.Error(t, Forget(t.Context(), s.root, everyModel))
	require.Equal(t, names, s.names())
	require.NoError(t, os.Chown(s.path(p.name+numbersEnd), 0, 0))
	require.Zero(t, total(s.read(), promptsTotal), "a file of another user than the directory's")
}
