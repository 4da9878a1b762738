//go:build unix

package install

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const rightsFile = "etc/sudoers.d/kvtier"

// newGroup is a service of the user ann, on a machine with sudo.
func newGroup(t *testing.T) (w *world, group string) {
	w = newService(t)
	w.show["User"] = "ann"
	require.NoError(t, os.MkdirAll(w.Sudoers, 0o755))
	mine, err := user.LookupGroupId("0")
	require.NoError(t, err)
	return w, mine.Name
}

// TestGroup: members of a group may run the verbs that read, with no flag that names a file, until the group is taken
// back.
func TestGroup(t *testing.T) {
	t.Parallel()
	w, group := newGroup(t)
	before := w.tree()
	require.NoError(t, w.install(Options{Variables: map[string]string{GroupVariable: group}}))
	text := w.read(rightsFile)
	require.Contains(t, text, "%"+group+" ALL=(ann) NOPASSWD: "+w.at("usr/local/bin/kvtier")+" ls, \\\n")
	require.Contains(t, text, "/usr/bin/kvtier why --json, \\\n")
	for _, never := range []string{"*", "(root)", "SETENV", "ALL, ", "export", "inspect", " rm", "--output", "--root"} {
		require.NotContains(t, text, never)
	}
	for line, may := range map[string]bool{
		"why": true, "why --all": true, "why -n 5": true, "why -n 20": true, "why -n 200": false, "why -n 2 --root /x": false,
		"why qwen3:4b": false, "why --root /x": false, "ls --json": true, "ls --all": false, "export": false, "": false,
	} {
		require.Equal(t, may, CanRead(line), line)
	}
	info, err := os.Stat(w.at(rightsFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o440), info.Mode())
	if visudo, err := exec.LookPath("visudo"); err == nil {
		out, err := exec.Command(visudo, "--check", "--file", w.at(rightsFile)).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	s, ok := w.Served(t.Context())
	require.True(t, ok)
	require.Equal(t, group, s.Group)
	require.Equal(t, "sudo -u ann "+w.at("usr/local/bin/kvtier"), s.Reads)

	// The group stays over an update of kvtier, follows the service's user, and goes when it is taken back.
	p := w.plan("install", Options{})
	require.Empty(t, p.Steps)
	w.show["User"] = "eve"
	require.NoError(t, w.install(Options{}))
	require.Contains(t, w.read(rightsFile), "(eve)")
	require.NoError(t, w.install(Options{Reset: []string{GroupVariable}}))
	require.NoFileExists(t, w.at(rightsFile))
	s, _ = w.Served(t.Context())
	require.Empty(t, s.Reads)

	require.NoError(t, w.install(Options{Variables: map[string]string{GroupVariable: group}}))
	require.FileExists(t, w.at(rightsFile))
	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())
}

// TestGroupBesideAnotherService: what one service has stays while kvtier comes to another one and goes.
func TestGroupBesideAnotherService(t *testing.T) {
	t.Parallel()
	w, group := newGroup(t)
	opt, ai := Options{Variables: map[string]string{GroupVariable: group}}, Options{Choice: Choice{Service: "ai"}}
	require.NoError(t, w.install(opt))
	w.write("etc/systemd/system/ai.service", "[Service]\n", 0o644)
	before := w.tree()
	require.NoError(t, w.do("remove", ai))
	require.Equal(t, before, w.tree(), "kvtier was not there")
	require.NoError(t, w.install(ai))
	require.FileExists(t, w.at(rightsFile))
	require.Empty(t, w.plan("install", ai).Steps)
	require.ErrorContains(t, w.install(Options{Choice: ai.Choice, Variables: opt.Variables}), "--group is set for ollama.service already")
	require.NoError(t, w.do("remove", ai))
	require.NoFileExists(t, w.at("etc/systemd/system/ai.service.d/kvtier.conf"))
	require.FileExists(t, w.at(rightsFile))
	require.FileExists(t, w.at("usr/local/lib/kvtier/llama-server"))
	require.NoError(t, w.remove())
	require.NoFileExists(t, w.at(rightsFile))
	require.NoFileExists(t, w.at("usr/local/lib/kvtier/llama-server"))
}

// TestGroupsThatAreRefused: nothing is changed, and the file of somebody else stays.
func TestGroupsThatAreRefused(t *testing.T) {
	t.Parallel()
	for want, prepare := range map[string]func(w *world, group *string){
		"names no group":              func(_ *world, group *string) { *group = "nobody has this one" },
		"a user of its own":           func(w *world, _ *string) { w.show["User"] = "" },
		"which ollama.service has no": func(w *world, _ *string) { w.show["DynamicUser"] = "yes" },
		"needs sudo":                  func(w *world, _ *string) { require.NoError(t, os.Remove(w.Sudoers)) },
		"was not written by kvtier":   func(w *world, _ *string) { w.write(rightsFile, "%wheel ALL=(ALL) ALL\n", 0o440) },
		"only root can change it": func(w *world, _ *string) {
			w.write("usr/local/bin/kvtier", newServer, 0o755)
			w.owner = 12345
		},
		"only root can change it and": func(w *world, _ *string) { // staff may, on some Debian
			require.NoError(t, os.Chmod(w.Bin, 0o775))
		},
	} {
		w, group := newGroup(t)
		prepare(w, &group)
		before := w.tree()
		require.ErrorContains(t, w.install(Options{Variables: map[string]string{GroupVariable: group}}), want)
		require.Equal(t, before, w.tree(), want)
	}
}

// TestGroupBrokenOff: wherever install or remove ends, no rights are left without an installation.
func TestGroupBrokenOff(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"install", "remove"} {
		for n := 1; ; n++ {
			w, group := newGroup(t)
			opt := Options{Variables: map[string]string{GroupVariable: group}}
			before := w.tree()
			if verb == "remove" {
				require.NoError(t, w.install(opt))
			}
			if !w.breakOff(n, func() error { return w.do(verb, opt) }) {
				require.Greater(t, n, 5)
				break
			}
			require.NoError(t, w.remove(), "%s broken off before change %d", verb, n)
			require.NoFileExists(t, filepath.Join(w.Sudoers, rightsName+newSuffix))
			require.Equal(t, before, w.tree(), "%s broken off before change %d", verb, n)
		}
	}
}
