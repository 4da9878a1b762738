package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// childEnv has this program run as a child, which starts another one if the value is "parent".
const childEnv = "KVTIER_TEST_PROC"

func TestMain(m *testing.M) {
	kind := os.Getenv(childEnv)
	if kind == "" {
		os.Exit(m.Run())
	}
	if kind == "parent" {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=child")
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
		if cmd.Start() != nil {
			os.Exit(1)
		}
	} else {
		os.Stdout.WriteString("started\n")
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
}

// startFamily starts a process and its child, both with a name, and ends them with the test.
func startFamily(t *testing.T, name string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Symlink(self, link))
	cmd := exec.Command(link)
	cmd.Env = append(os.Environ(), childEnv+"=parent")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	output := bufio.NewReader(stdout)
	t.Cleanup(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, output) // until both have ended
		_ = cmd.Wait()
	})
	_, err = output.ReadString('\n')
	require.NoError(t, err)
	return cmd
}

func TestProcesses(t *testing.T) {
	own, err := Read(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getppid(), own.Parent)
	require.Equal(t, unix.Getpgrp(), own.Group)
	require.False(t, own.Ended())
	for _, name := range hostileNames {
		if name == "" {
			continue // not the name of a file
		}
		t.Run(name, func(t *testing.T) {
			pid := startFamily(t, name).Process.Pid
			comm, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "comm"))
			require.NoError(t, err)
			require.Equal(t, name+"\n", string(comm))
			s, err := Read(pid)
			require.NoError(t, err)
			require.Equal(t, os.Getpid(), s.Parent)
			require.Equal(t, own.Group, s.Group)
			require.GreaterOrEqual(t, s.Start, own.Start)
			require.False(t, s.Ended())

			below, err := Below(os.Getpid())
			require.NoError(t, err)
			require.Len(t, below, 2)
			require.Equal(t, pid, below[0])
			child, err := Read(below[1])
			require.NoError(t, err)
			require.Equal(t, pid, child.Parent)
		})
	}
}

// TestAProcessThatNobodyHasWaitedFor is in the table, and has ended.
func TestAProcessThatNobodyHasWaitedFor(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run", "^$")
	require.NoError(t, cmd.Start())
	pid := cmd.Process.Pid
	require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	s, err := Read(pid)
	require.NoError(t, err)
	require.True(t, s.Ended())
	all, err := All()
	require.NoError(t, err)
	require.Contains(t, all, pid)
	require.NoError(t, cmd.Wait())
	_, err = Read(pid)
	require.Error(t, err)
}

func TestBoot(t *testing.T) {
	id, err := Boot()
	require.NoError(t, err)
	require.Regexp(t, "^[0-9a-f-]{36}$", id)
}
