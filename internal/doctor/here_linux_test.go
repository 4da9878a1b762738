package doctor_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/mounts"
)

// childVar makes the test binary a process that waits for the end of its input.
const childVar = "KVTIER_DOCTOR_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// here looks at a directory of this machine.
func here(t *testing.T, opt doctor.Options) doctor.Report {
	t.Helper()
	return doctor.Look(t.Context(), doctor.Here{}, opt)
}

// tmpfs mounts a filesystem in memory until the test ends.
func tmpfs(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0700,"+options); err != nil {
		t.Skipf("this machine cannot mount tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// left lists the names in a directory: doctor leaves none.
func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// inMemory reports whether a directory was found to be in memory: one below /tmp is emptied anyhow.
func inMemory(r doctor.Report) bool {
	return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.ID == "root-emptied" && f.Evidence[0].Value == "in memory" })
}

// TestProbeInAnothersDirectory: a server's user may exchange the directory that it names, after root has looked whose
// it is.
func TestProbeInAnothersDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	link := dir + "-link"
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Symlink(dir, link))
	before, err := os.Stat(dir)
	require.NoError(t, err)
	for _, path := range []string{dir, link} {
		require.ErrorContains(t, doctor.Here{}.Probe(path, os.Geteuid()+1), "was replaced while it was looked at")
	}
	after, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, before.ModTime(), after.ModTime(), "no file was made")
	require.NoError(t, doctor.Here{}.Probe(dir, os.Geteuid()))
	require.Empty(t, left(t, dir))
}

// TestTmpfsForReal: a filesystem in memory, a full one, and one that cannot be written.
func TestTmpfsForReal(t *testing.T) {
	dir := tmpfs(t, 0, "size=256m")
	require.True(t, inMemory(here(t, doctor.Options{Root: dir})))
	require.Empty(t, left(t, dir), "the probe is removed")
	dir = tmpfs(t, 0, "size=16m")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 15<<20), 0o600))
	require.Contains(t, ids(here(t, doctor.Options{Root: dir})), "disk-full")
	require.Equal(t, []string{"filler"}, left(t, dir))
	dir = tmpfs(t, unix.MS_RDONLY, "size=16m")
	require.Contains(t, ids(here(t, doctor.Options{Root: dir})), "root-read-only")
}

func TestHungMountForReal(t *testing.T) {
	p := mounts.NewPassthrough(t, t.TempDir())
	local := t.TempDir()
	require.NoError(t, os.Chmod(local, 0o777))
	p.Stall(mounts.OpLookup, mounts.OpGetAttr, mounts.OpStatFs, mounts.OpOpenDir)
	defer p.Heal()
	found := ids(here(t, doctor.Options{Root: local, Remote: filepath.Join(p.Dir, "pages"), Limit: 300 * time.Millisecond}))
	require.Contains(t, found, "no-answer")
	require.Contains(t, found, "root-unsafe", "the other directory is looked at")
}

func TestOwnersAndModesForReal(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "v1", "quarantine"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "v1", "quarantine", "a.kvp"), nil, 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "v1", "usage.json"), 0o600), "a FIFO keeps nobody waiting")
	require.Contains(t, ids(here(t, doctor.Options{Root: root})), "quarantine")
	require.NoError(t, os.Chmod(root, 0o775))
	require.Contains(t, ids(here(t, doctor.Options{Root: root})), "root-unsafe")
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "link")))
	require.Contains(t, ids(here(t, doctor.Options{Root: filepath.Join(dir, "link")})), "root-unsafe")
	require.Contains(t, ids(here(t, doctor.Options{Root: filepath.Join(dir, "none")})), "root-missing")
	require.Contains(t, ids(here(t, doctor.Options{Root: root, Remote: filepath.Join(dir, "none")})), "remote-missing")
	require.Equal(t, []string{"v1"}, left(t, root))

	// A link in a directory of pages leads to nothing that is reported.
	require.NoError(t, os.Rename(filepath.Join(root, "v1"), filepath.Join(dir, "v1")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "v1"), filepath.Join(root, "v1")))
	require.NotContains(t, ids(here(t, doctor.Options{Root: root})), "quarantine")
}

// server starts a process that looks like ollama serve.
func server(t *testing.T, variables ...string) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"ollama", "serve"}
	cmd.Env = append([]string{childVar + "=1", "HOME=/nonexistent"}, variables...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	require.NoError(t, err)
	return cmd.Process.Pid
}

// of are the findings that name a process.
func of(r doctor.Report, pid int) (all []string) {
	for _, f := range r.Findings {
		if slices.ContainsFunc(f.Evidence, func(e doctor.Evidence) bool { return contains(e.Of, pid) }) || contains(f.Says, pid) {
			all = append(all, f.ID)
		}
	}
	return all
}

func contains(text string, pid int) bool {
	return regexp.MustCompile(`\b` + strconv.Itoa(pid) + `\b`).MatchString(text)
}

// TestProcessForReal: the variables of a running process are found.
func TestProcessForReal(t *testing.T) {
	t.Setenv("OLLAMA_KV_TIERING", "")
	off := server(t)
	require.Contains(t, of(here(t, doctor.Options{}), off), "tiering-off")

	t.Setenv("OLLAMA_KV_TIERING", "1")
	require.Contains(t, of(here(t, doctor.Options{}), off), "tiering-off")

	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o707))
	require.NoError(t, os.Chmod(root, 0o707))
	bad := server(t, "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+root, "OLLAMA_KV_TIER_RAM_GB=lots")
	r := here(t, doctor.Options{})
	require.Contains(t, of(r, bad), "bad-variable")
	require.Contains(t, ids(r), "root-unsafe", "the directory is that of the server's variable")
	require.Empty(t, left(t, root))
}

// TestServiceForReal: a systemctl that answers as systemd's, with a file of variables, and a
// process that was started before they changed.
func TestServiceForReal(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	pid := server(t, "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+root)
	file := filepath.Join(dir, "environment")
	require.NoError(t, os.WriteFile(file, []byte("OLLAMA_KV_TIER_LOCAL_GB=7\n"), 0o600))
	answer := "LoadState=loaded\nActiveState=active\nMainPID=" + strconv.Itoa(pid) + "\nUser=\nPrivateTmp=yes\nNeedDaemonReload=no\n" +
		"ExecStart={ path=/usr/local/bin/ollama ; argv[]=/usr/local/bin/ollama serve ; }\n" +
		"Environment=OLLAMA_KV_TIERING=1 OLLAMA_KV_TIER_LOCAL=" + root + "\n" +
		"EnvironmentFiles=" + file + " (ignore_errors=no)\nEnvironmentFiles=" + file + ".gone (ignore_errors=yes)\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "answer"), []byte(answer), 0o600))
	script := "#!/bin/sh\ncase \"$1\" in show) cat " + filepath.Join(dir, "answer") + ";; *) exit 1;; esac\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	r := here(t, doctor.Options{})
	require.Contains(t, finding(t, r, "not-restarted").Evidence, doctor.Evidence{Of: "OLLAMA_KV_TIER_LOCAL_GB", Value: "runs with not set, configured 7"})
	require.Contains(t, r.Looked, "server ollama.service, process "+strconv.Itoa(pid)+" of "+doctor.Here{}.User().Name)
	if strings.HasPrefix(root, "/tmp/") { // the usual place of temporary files
		require.Contains(t, ids(r), "root-emptied")
	}

	// A program that does not answer is given up, and the process is found by itself.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700))
	r = here(t, doctor.Options{Limit: 300 * time.Millisecond})
	require.Contains(t, strings.Join(r.Looked, "\n"), "process "+strconv.Itoa(pid)+" (")
}
