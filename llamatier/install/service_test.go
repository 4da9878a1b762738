//go:build unix

package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const dropInFile = "etc/systemd/system/ollama.service.d/kvtier.conf"

// goldenUnit is the drop-in for Ollama's own service.
const goldenUnit = `# Written by kvtier ollama install. kvtier ollama remove deletes it.
[Service]
Environment="KVTIER_LLAMA_LOG=/var/log/kvtier/llama-server.log"
Environment="OLLAMA_KV_TIERING=1"
Environment="OLLAMA_KV_TIER_LOCAL=/var/lib/kvtier/pages"
StateDirectory=kvtier
LogsDirectory=kvtier
# Ollama's folder with the real llama-server, then ours in its place.
BindReadOnlyPaths=-/usr/local/lib/ollama:/usr/local/lib/kvtier/ollama:norbind
BindReadOnlyPaths=-/usr/local/lib/kvtier/llama-server:/usr/local/lib/ollama/llama-server
`

func newService(t *testing.T) *world {
	w := newFolder(t)
	w.service("usr/local")
	return w
}

func TestInstallForAService(t *testing.T) {
	t.Parallel()
	w := newService(t)
	before := w.tree()
	p := w.plan("install", Options{})
	require.Equal(t, `copy kvtier 0.1.0 to /usr/local/lib/kvtier/llama-server, link /usr/local/bin/kvtier to it
run /usr/local/lib/kvtier/llama-server --version: it must reach the real llama-server
write /etc/systemd/system/ollama.service.d/kvtier.conf
| `+strings.ReplaceAll(strings.TrimSuffix(goldenUnit, "\n"), "\n", "\n| ")+`
systemctl daemon-reload, systemctl restart ollama.service (models that are loaded are unloaded)
check that ollama.service answers at http://127.0.0.1:11434 and runs kvtier
`, w.shown(p))
	require.Equal(t, before, w.tree(), "a plan changes nothing")
	require.Equal(t, None, w.state().State)
	w.UID = 1000
	others := w.plan("install", Options{})
	require.Equal(t, w.shown(p), w.shown(others), "any user may see the steps")
	require.ErrorContains(t, others.Cannot(), "only root may change a service; run sudo "+w.at("kit/kvtier")+" ollama install ")
	w.UID = 0

	require.NoError(t, p.Do(t.Context(), func(Step) {}))
	require.Equal(t, []string{"/usr/local/lib/kvtier/llama-server --version", "systemctl daemon-reload", "systemctl restart ollama.service"}, w.ran)
	require.Equal(t, stockServer, w.read(lib+"llama-server"), "the folder is as it was")
	s := w.state()
	require.Equal(t, Installed, s.State, s.Hints)
	require.Equal(t, "on", s.Tiering)
	require.Equal(t, "ollama.service", s.Service)
	require.Equal(t, "0.1.0", s.Kvtier)
	require.True(t, s.Answers)

	// Once more, and with a newer version.
	again := w.plan("install", Options{})
	require.Empty(t, again.Steps)
	w.write("kit/kvtier", newServer, 0o755)
	require.NoError(t, w.install(Options{}))
	require.Equal(t, "0.2.0", w.state().Kvtier)
	w.write("kit/kvtier", ourServer, 0o755)

	// The updater removes Ollama's folder. The next start mounts again.
	require.NoError(t, os.RemoveAll(w.at(lib)))
	w.tarball("usr/local", nextServer)
	w.mount()
	require.Equal(t, Installed, w.state().State)
	w.write(lib+"llama-server", stockServer, 0o755)

	w.write("var/lib/kvtier/pages/v1/page", "page", 0o600)
	w.write("var/log/kvtier/llama-server.log", "log", 0o600)
	p = w.plan("remove", Options{})
	require.Equal(t, `remove /etc/systemd/system/ollama.service.d/kvtier.conf
systemctl daemon-reload, systemctl restart ollama.service (models that are loaded are unloaded)
remove /var/log/kvtier, remove /usr/local/lib/kvtier and /usr/local/bin/kvtier
check that ollama.service answers at http://127.0.0.1:11434
Pages in /var/lib/kvtier/pages stay. They hold conversations: remove the directory when nobody needs them.
`, w.shown(p))
	require.NoError(t, p.Do(t.Context(), func(Step) {}))
	require.Equal(t, "page", w.read("var/lib/kvtier/pages/v1/page"))
	require.NoError(t, os.RemoveAll(w.at("var/lib/kvtier")))
	require.Equal(t, before, w.tree())
	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())
}

// TestDocumentShowsTheDropIn: docs/install.md has the drop-in as it is written.
func TestDocumentShowsTheDropIn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "\n```ini\n"+strings.TrimPrefix(goldenUnit, dropInFirst)+"```\n")
}

// TestBrokenOffForAService: wherever install or remove is broken off, both commands lead to
// their end, and Ollama's own folder never changes.
func TestBrokenOffForAService(t *testing.T) {
	t.Parallel()
	points := 0
	for _, verb := range []string{"install", "remove"} {
		for _, then := range []string{"install", "remove"} {
			for n := 1; ; n++ {
				w := newService(t)
				before := w.tree()
				if verb == "remove" {
					require.NoError(t, w.install(Options{}))
				}
				opt := Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": w.at("fast/kv/pages")}}
				if !w.breakOff(n, func() error { return w.do(verb, opt) }) {
					break
				}
				points++
				require.Equal(t, stockServer, w.read(lib+"llama-server"))
				w.mount() // as the next start does
				s := w.state()
				require.Contains(t, []state{None, Interrupted, Installed}, s.State, s.Hints)
				require.NoError(t, w.do(then, opt), "%s broken off before change %d, then %s", verb, n, then)
				if then == "install" {
					require.Equal(t, Installed, w.state().State)
					require.NoError(t, w.remove())
				}
				require.Equal(t, None, w.state().State)
				require.Equal(t, before, w.tree(), "%s broken off before change %d, then %s", verb, n, then)
			}
		}
	}
	require.Greater(t, points, 30)
}

// TestSettingsStay: an install without flags keeps the settings of the one before.
func TestSettingsStay(t *testing.T) {
	t.Parallel()
	w := newService(t)
	w.show["RestrictAddressFamilies"] = "AF_INET AF_INET6"
	require.NoError(t, w.install(Options{Variables: map[string]string{
		"OLLAMA_KV_TIER_LOCAL": w.at("fast/pages"), "OLLAMA_KV_TIER_LOCAL_GB": "100",
	}}))
	require.DirExists(t, w.at("fast/pages"))
	for _, line := range []string{
		`Environment="OLLAMA_KV_TIER_LOCAL=` + w.at("fast/pages") + `"`, `Environment="OLLAMA_KV_TIER_LOCAL_GB=100"`,
		"ReadWritePaths=-" + w.at("fast/pages"), "RestrictAddressFamilies=AF_UNIX",
	} {
		require.Contains(t, w.read(dropInFile), line+"\n")
	}
	require.NoError(t, w.install(Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL_GB": "50"}}))
	require.Contains(t, w.read(dropInFile), w.at("fast/pages"))
	require.Contains(t, w.read(dropInFile), "_GB=50")

	// One setting goes back to its default, and the others stay.
	require.NoError(t, w.install(Options{Reset: []string{"OLLAMA_KV_TIER_LOCAL_GB"}}))
	require.Contains(t, w.read(dropInFile), w.at("fast/pages"))
	require.NotContains(t, w.read(dropInFile), "_GB=")
	require.NoError(t, w.install(Options{Reset: []string{"OLLAMA_KV_TIER_LOCAL"}}))
	require.Contains(t, w.read(dropInFile), `"OLLAMA_KV_TIER_LOCAL=`+w.at("var/lib/kvtier/pages")+`"`)
	require.NotContains(t, w.read(dropInFile), "ReadWritePaths")

	require.NoError(t, w.remove())
	require.NoDirExists(t, w.at("fast/pages"))
}

// TestPagesOfEarlierInstalls: each directory that the service has used stays, and is named.
func TestPagesOfEarlierInstalls(t *testing.T) {
	t.Parallel()
	w := newService(t)
	at := func(dir string) Options {
		return Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": w.at(dir), "OLLAMA_KV_TIER_REMOTE": "/mnt/kv"}}
	}
	w.write("before/file", "mine", 0o600)
	require.NoError(t, w.install(Options{}))
	w.write("var/lib/kvtier/pages/v1/page", "page", 0o600)
	p := w.plan("install", Options{Variables: at("one").Variables})
	require.Contains(t, w.shown(p), "Pages in /var/lib/kvtier/pages are not used any more. They hold conversations: remove the directory when nobody needs them.\n")
	for _, dir := range []string{"one", "before", "two"} {
		require.NoError(t, w.install(at(dir)))
		w.write(dir+"/v1/page", "page", 0o600)
	}

	p = w.plan("remove", Options{})
	require.Contains(t, w.shown(p), "Pages in /var/lib/kvtier/pages, /one, /before and /two stay. They hold conversations: remove the directories when nobody needs them.\n")
	require.Contains(t, w.shown(p), "Pages in /mnt/kv, the remote tier, stay: other servers may use them.\n")
	require.NoError(t, p.Do(t.Context(), func(Step) {}))
	for _, dir := range []string{"one", "before", "two", "var/lib/kvtier/pages"} {
		require.Equal(t, "page", w.read(dir+"/v1/page"))
	}
	require.Equal(t, "mine", w.read("before/file"))

	// A variable of a person's own drop-in wins, so its directory is named.
	require.NoError(t, w.install(Options{}))
	w.later = "OLLAMA_KV_TIER_LOCAL=" + w.at("own")
	w.write("own/v1/page", "page", 0o600)
	require.Contains(t, w.shown(w.plan("remove", Options{})), "/own stay.")
}

// TestAnUpdateThatFails: whatever step of an update fails, the service runs the earlier installation again, with
// its settings, its group and its note, and is not restarted for a change that it has not seen.
func TestAnUpdateThatFails(t *testing.T) {
	t.Parallel()
	once := func(line string) func(*world) {
		return func(w *world) {
			run, failed := w.sys.run, false
			w.sys.run = func(ctx context.Context, v []string, name string, args ...string) (string, error) {
				if !failed && strings.Join(append([]string{filepath.Base(name)}, args...), " ") == line {
					failed = true
					return "", errors.New("it failed")
				}
				return run(ctx, v, name, args...)
			}
		}
	}
	for name, tc := range map[string]struct {
		lay       func(*world)
		says      string
		restarted bool
	}{
		"ours does not run": {once("llama-server --version"), "it failed", false},
		"reload":            {once("systemctl daemon-reload"), "it failed", true},
		"restart":           {once("systemctl restart ollama.service"), "ollama.service (models that are loaded are unloaded): it failed", true},
		"switched off":      {func(w *world) { w.write("proc/7/environ", "OLLAMA_KV_TIERING=0\x00", 0o644) }, "another drop-in sets it", true},
	} {
		t.Run(name, func(t *testing.T) {
			w, before := newUpdate(t)
			tc.lay(w)
			err := w.updateAll()
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, "; the installation for ollama.service is again as it was")
			require.NotContains(t, err.Error(), w.at("two"))
			require.Equal(t, before, w.tree())
			require.Equal(t, tc.restarted, slices.Contains(w.ran, "systemctl restart ollama.service"), w.ran)
		})
	}
	for n := 1; ; n++ {
		w, before := newUpdate(t)
		if !w.failOnce(n, w.updateAll) {
			require.Greater(t, n, 8)
			require.Equal(t, "0.2.0", w.state().Kvtier)
			break
		}
		require.Equal(t, before, w.tree(), "change %d", n)
		require.Equal(t, Installed, w.state().State, "change %d", n)
	}
}

// newUpdate is a service with an installation that has settings and a group, and a newer program.
func newUpdate(t *testing.T) (w *world, before []string) {
	w, group := newGroup(t)
	for _, dir := range []string{"one/v1", "two"} { // of the service's user already, who is nobody here
		require.NoError(t, os.MkdirAll(w.at(dir), 0o755))
	}
	require.NoError(t, w.install(Options{Variables: map[string]string{
		"OLLAMA_KV_TIER_LOCAL": w.at("one"), "OLLAMA_KV_METRICS_ADDR": "127.0.0.1:9401", GroupVariable: group,
	}}))
	w.write("var/log/kvtier/llama-server.log", "log", 0o600)
	w.write("kit/kvtier", newServer, 0o755)
	w.ran = nil
	return w, w.tree()
}

// updateAll installs the newer program with other settings, and takes the group back.
func (w *world) updateAll() error {
	return w.install(Options{Reset: []string{GroupVariable}, Variables: map[string]string{
		"OLLAMA_KV_TIER_LOCAL": w.at("two"), "OLLAMA_KV_METRICS_ADDR": "127.0.0.1:9402",
	}})
}

// TestAnInstallThatFails: whatever change fails, nothing is left, and what another service or an earlier installation
// by file has stays.
func TestAnInstallThatFails(t *testing.T) {
	t.Parallel()
	for _, beside := range []string{"nothing", "a service", "a file"} {
		for n := 1; ; n++ {
			w := newFolder(t)
			if beside == "a file" {
				require.NoError(t, w.install(Options{}))
				require.NoError(t, os.RemoveAll(w.at(lib)))
				w.tarball("usr/local", nextServer)
			}
			w.service("usr/local")
			opt := Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": w.at("fast/pages")}}
			if beside == "a service" {
				require.NoError(t, w.install(Options{}))
				w.write("etc/systemd/system/ai.service", "[Service]\n", 0o644)
				opt.Service = "ai"
			}
			w.write("kit/kvtier", newServer, 0o755)
			before := w.tree()
			if !w.failOnce(n, func() error { return w.install(opt) }) {
				require.Greater(t, n, 10)
				break
			}
			require.Equal(t, before, w.tree(), "change %d, beside %s", n, beside)
		}
	}
}

// TestServicesThatAreRefused: the error says why, and nothing is changed.
func TestServicesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lay  func(*world)
		opt  Options
		says string
	}{
		"not root":     {func(w *world) { w.UID = 1000 }, Options{}, "only root may change a service; run sudo KVTIER ollama install --root '/a b'"},
		"another root": {func(w *world) { w.show["RootDirectory"] = "/srv/root" }, Options{}, "has a root of its own"},
		"a drop-in":    {func(w *world) { w.write(dropInFile, "[Service]\n", 0o644) }, Options{}, "was not written by kvtier; move it away"},
		"hidden homes": {func(w *world) { w.show["ProtectHome"] = "yes" }, Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": "/home/a/pages"}}, "because it has ProtectHome=yes"},
		"a line":       {func(*world) {}, Options{Variables: map[string]string{"OLLAMA_KV_METRICS_ADDR": "a\"\nUser=root\n:1"}}, "cannot be written into a unit; leave quotes, backslashes and control characters out"},
		"a log":        {func(w *world) { w.Logs = "/var/log" }, Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": "/var/log/kvtier/pages"}}, "/var/log/kvtier/pages is in /var/log/kvtier, which remove removes, and pages must stay; give another directory as --root"},
		"a name":       {func(*world) {}, Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": "/a b"}}, "/a b cannot be written into a unit"},
		"by file":      {func(w *world) { w.write(lib+"llama-server-real", stockServer, 0o755) }, Options{}, "is changed already (interrupted): it has to be taken back first; run KVTIER ollama remove --service ollama.service"},
		"no systemd":   {func(w *world) { w.show["LoadState"] = "not-found" }, Options{Choice: Choice{Service: "ai"}}, "systemd does not run here, so there is no ai.service; leave --service out"},
		"no service":   {func(w *world) { require.NoError(w.t, os.Mkdir(w.at("run"), 0o755)); w.show["LoadState"] = "not-found" }, Options{Choice: Choice{Service: "ai"}}, "systemd has no service ai.service"},
		"another one":  {func(w *world) { w.show["ExecStart"] = "{ path=/bin/sh ; argv[]=/bin/sh -c x ; }" }, Options{Choice: Choice{Service: "ai"}}, "ai.service runs /bin/sh, not ollama"},
		"no server":    {func(w *world) { require.NoError(w.t, os.Remove(w.at(lib+"llama-server"))) }, Options{}, "has no llama-server, which Ollama has from v0.30.0 on; install the newest Ollama"},
		"not ours":     {func(w *world) { w.write("kit/kvtier", stockServer, 0o755) }, Options{}, "does not say that it is kvtier"},
		"none of ours": {func(w *world) { require.NoError(w.t, os.RemoveAll(w.at("kit"))) }, Options{}, "does not exist any more"},
		"no answer":    {func(w *world) { require.NoError(w.t, os.Mkdir(w.at("run"), 0o755)); w.broken = "systemctl" }, Options{}, "ask systemd for ollama.service: it is broken: permission denied; run sudo KVTIER ollama install --root '/a b'"},
		"two":          {func(w *world) { w.tarball("usr", stockServer) }, Options{}, "there are several: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newService(t)
			tc.lay(w)
			before := w.tree()
			require.ErrorContains(t, w.install(tc.opt), strings.ReplaceAll(tc.says, "KVTIER", w.at("kit/kvtier")))
			require.Equal(t, before, w.tree())
			require.Empty(t, w.ran)
		})
	}
}

// TestChecksOfAServiceFail: the service runs as before.
func TestChecksOfAServiceFail(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lay  func(*world)
		says string
	}{
		"ours does not run": {func(w *world) { w.broken = w.at("usr/local/lib/kvtier/llama-server") }, "it is broken"},
		"switched off":      {func(w *world) { w.write("proc/7/environ", "OLLAMA_KV_TIERING=0\x00", 0o644) }, "OLLAMA_KV_TIERING is off in ollama.service: another drop-in sets it"},
		"no boolean":        {func(w *world) { w.write("proc/7/environ", "OLLAMA_KV_TIERING=no\x00", 0o644) }, "OLLAMA_KV_TIERING=no in ollama.service is neither 1 nor 0"},
		"gone again":        {func(w *world) { require.NoError(w.t, os.Remove(w.at("proc/7/environ"))) }, "the process of ollama.service cannot be looked at"},
		"not mounted": {func(w *world) {
			run := w.sys.run
			w.sys.run = func(ctx context.Context, v []string, name string, args ...string) (string, error) {
				out, err := run(ctx, v, name, args...)
				if len(args) > 0 && args[0] == "restart" {
					require.NoError(w.t, os.RemoveAll(w.at("proc/7/root")))
					w.write("proc/7/root"+w.at(lib+"llama-server"), stockServer, 0o755)
				}
				return out, err
			}
		}, "does not see kvtier's file as "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newService(t)
			tc.lay(w)
			before := w.tree()
			err := w.install(Options{})
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, "; Ollama runs its own llama-server again")
			require.Equal(t, before, w.tree())
		})
	}
}

// TestStatusOfAService: everything that needs attention is said.
func TestStatusOfAService(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lay     func(*world)
		state   state
		tiering string
		says    string
	}{
		"all well": {func(*world) {}, Installed, "on", ""},
		"stopped":  {func(w *world) { w.show["ActiveState"] = "inactive"; w.answers = "" }, Installed, "unknown", "ollama.service is not running."},
		"not restarted": {func(w *world) {
			require.NoError(w.t, os.RemoveAll(w.at("proc/7/root")))
			w.write("proc/7/root/x", "", 0o644)
		}, Installed, "off", "does not see kvtier's file"},
		"switched off": {func(w *world) { w.write("proc/7/environ", "OLLAMA_KV_TIERING=0\x00", 0o644) }, Installed, "off", "another drop-in sets it"},
		"no boolean":   {func(w *world) { w.write("proc/7/environ", "OLLAMA_KV_TIERING=yes\x00", 0o644) }, Installed, "off", "OLLAMA_KV_TIERING=yes in ollama.service is neither 1 nor 0, so nothing is stored: another drop-in sets it"},
		"unset":        {func(w *world) { w.write("proc/7/environ", "A=b\x00", 0o644) }, Installed, "off", "ollama.service runs without OLLAMA_KV_TIERING; run systemctl restart ollama.service."},
		"another user's": {func(w *world) {
			require.NoError(w.t, os.Remove(w.at("proc/7/environ")))
			require.NoError(w.t, os.RemoveAll(w.at("proc/7/root")))
		}, Installed, "unknown", "run sudo KVTIER ollama install --root '/a b'."},
		"another user's files": {func(w *world) { require.NoError(w.t, os.RemoveAll(w.at("proc/7/root"))) }, Installed, "unknown", "run sudo KVTIER ollama install --root '/a b'."},
		"ours is gone":         {func(w *world) { require.NoError(w.t, os.Remove(w.at("usr/local/lib/kvtier/llama-server"))) }, Broken, "off", "so the service runs Ollama's own llama-server; run KVTIER ollama install --service ollama.service."},
		"moved": {func(w *world) {
			w.tarball("usr", stockServer)
			w.show["ExecStart"] = "{ path=/usr/bin/env ; argv[]=/usr/bin/env A=b " + w.at("usr/bin/ollama") + " serve ; }"
			require.NoError(w.t, os.RemoveAll(w.at("usr/local/bin")))
		}, Replaced, "off", "the drop-in is for another one; run KVTIER ollama install --service ollama.service."},
		"no drop-in": {func(w *world) { require.NoError(w.t, os.Remove(w.at(dropInFile))) }, Interrupted, "off", "broken off; run KVTIER ollama install --service ollama.service."},
	} {
		t.Run(name, func(t *testing.T) {
			w := newService(t)
			require.NoError(t, w.install(Options{}))
			tc.lay(w)
			s := w.state()
			require.Equal(t, tc.state, s.State, s.Hints)
			require.Equal(t, tc.tiering, s.Tiering)
			require.Equal(t, tc.state != Installed || tc.tiering == "off", s.Bad())
			if tc.says == "" {
				require.Empty(t, s.Hints)
				return
			}
			require.Len(t, s.Hints, 1)
			require.Contains(t, s.Hints[0], strings.ReplaceAll(tc.says, "KVTIER", w.at("kit/kvtier")))
		})
	}
}

func TestLastLine(t *testing.T) {
	t.Parallel()
	w := newService(t)
	require.NoError(t, w.install(Options{}))
	w.write("proc/7/environ", "OLLAMA_KV_TIERING=1\x00KVTIER_LLAMA_LOG="+w.at("log")+"\x00", 0o644)
	off := `level=WARN msg="kv tier: off for this model" reason="it keeps no rows of single tokens"`
	w.write("log", strings.Repeat("level=INFO msg=\"kv tier: on\"\n", 5000)+off+"\nlevel=INFO msg=\"kv tier: restored\"\n"+
		"level=WARN msg=\"kv tier: off for a router\"\n", 0o600)
	require.Equal(t, off, w.state().LastLog)

	// The line of an earlier server says nothing about this one.
	w.write("proc/7/environ", "OLLAMA_KV_TIERING=0\x00KVTIER_LLAMA_LOG="+w.at("log")+"\x00", 0o644)
	require.Empty(t, w.state().LastLog)
}

// TestUpdatesOfAService: the hint of the page knows an installation that Ollama's updater or somebody else undid.
func TestUpdatesOfAService(t *testing.T) {
	t.Parallel()
	w := newService(t)
	require.NoError(t, w.install(Options{}))
	require.Empty(t, w.Updates())
	w.tarball("usr", stockServer)
	require.Empty(t, w.Updates(), "another Ollama lies there")
	cure := "; run " + w.at("kit/kvtier") + " ollama install --service ollama.service."
	require.NoError(t, os.RemoveAll(w.at(lib)))
	require.Equal(t, []string{"Models of ollama.service are not tiered: Ollama's folder is " + w.at("usr/lib/ollama") + " now, and the drop-in is for another one" + cure}, w.Updates())
	w.tarball("usr/local", nextServer)
	require.Empty(t, w.Updates())
	server := w.at("usr/local/lib/kvtier/llama-server")
	require.NoError(t, os.Remove(server))
	require.Equal(t, []string{"Models of ollama.service are not tiered: " + server + " is gone, so the service runs Ollama's own llama-server" + cure}, w.Updates())
}

// TestOrphan: a service that is gone leaves files of ours, which remove finds.
func TestOrphan(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "ollama", "ollama.service"} {
		w := newService(t)
		require.NoError(t, w.install(Options{}))
		require.NoError(t, os.RemoveAll(w.at("usr/local/bin")))
		require.NoError(t, os.RemoveAll(w.at(lib)))
		require.NoError(t, os.Remove(w.at("etc/systemd/system/ollama.service")))
		w.show["LoadState"] = "not-found"
		require.NoError(t, w.do("remove", Options{Choice: Choice{Service: name}}))
		require.NoDirExists(t, w.at("usr/local/lib/kvtier"))
		require.NoDirExists(t, w.at("etc/systemd/system/ollama.service.d"))
	}
}

// TestPagesThatComeLate: a page that is stored while remove looks at the directory stays.
func TestPagesThatComeLate(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		w := newService(t)
		require.NoError(t, w.install(Options{}))
		times := 0
		w.Change = func() error {
			if times++; times == n {
				w.write("var/lib/kvtier/pages/page", "a page", 0o600)
			}
			return nil
		}
		require.NoError(t, w.remove())
		if times < n {
			require.Greater(t, n, 5)
			return
		}
		require.Equal(t, "a page", w.read("var/lib/kvtier/pages/page"), "before change %d", n)
	}
}

// TestCures: a status names the command line that helps its reader, also where this program stands in the place of
// llama-server.
func TestCures(t *testing.T) {
	t.Parallel()
	w := newService(t)
	require.NoError(t, w.install(Options{}))
	w.UID, w.Line = 1000, []string{"/home/a b/kvtier", "doctor"}
	require.NoError(t, os.Remove(w.at("usr/local/lib/kvtier/llama-server")))
	require.Equal(t, "sudo '/home/a b/kvtier' ollama install --service ollama.service", w.state().Cure)
	w.Line = []string{"/usr/local/lib/ollama/llama-server"}
	require.Regexp(t, `^sudo (/usr/bin/)?kvtier ollama install --service ollama.service$`, w.state().Cure)
	w.write("usr/local/lib/kvtier/llama-server", ourServer, 0o755)
	w.write("proc/7/environ", "A=b\x00", 0o644)
	require.Equal(t, "sudo systemctl restart ollama.service", w.state().Cure)
	w.write("proc/7/environ", "OLLAMA_KV_TIERING=0\x00", 0o644)
	require.Empty(t, w.state().Cure, "a person has said so")

	w = newFolder(t)
	w.UID, w.Line = 1000, []string{"/usr/local/lib/ollama/llama-server"}
	require.Regexp(t, "^(/usr/bin/)?kvtier ollama install --prefix "+w.at("usr/local")+"$", w.state().Cure)
	w.write("usr/local/lib/ollama.kvtier", ourServer, 0o755)
	require.Equal(t, w.at("usr/local/lib/ollama.kvtier")+" ollama install --prefix "+w.at("usr/local"), w.state().Cure)
	w.Access = func(string) error { return fs.ErrPermission }
	require.Equal(t, "sudo "+w.at("usr/local/lib/ollama.kvtier")+" ollama install --prefix "+w.at("usr/local"), w.state().Cure)
}

// TestAServiceAfterAFile: Ollama's installer has removed the folder with our file, and made a service.
func TestAServiceAfterAFile(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	require.NoError(t, w.install(Options{}))
	require.NoError(t, os.RemoveAll(w.at(lib)))
	w.tarball("usr/local", nextServer)
	w.service("usr/local")
	require.Equal(t, Replaced, w.state().State)
	opt := Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL": w.at("fast")}}
	p := w.plan("install", opt)
	require.Len(t, p.Steps, 5, "a person reads no more")
	require.Contains(t, w.shown(p), "copy kvtier 0.1.0 to /usr/local/lib/kvtier/llama-server, remove /usr/local/bin/kvtier, /usr/local/lib/ollama.kvtier and /usr/local/lib/ollama.kvtier-install.json, link /usr/local/bin/kvtier to it\n")
	require.Contains(t, w.shown(p), "make /fast for the user ")
	require.NoError(t, w.install(opt))
	require.Equal(t, Installed, w.state().State)
	require.NoFileExists(t, w.at("usr/local/lib/ollama.kvtier"))
	require.True(t, linksTo(w.at("usr/local/bin/kvtier"), w.at("usr/local/lib/kvtier/llama-server")))
	require.NoError(t, w.remove())
	require.Equal(t, None, w.state().State)
	_, err := os.Lstat(w.at("usr/local/bin/kvtier"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestCommandsOfOthers: our link stands neither over the user's own command nor before that of a package.
func TestCommandsOfOthers(t *testing.T) {
	t.Parallel()
	w := newService(t)
	w.write("usr/local/bin/kvtier", "the user's", 0o755)
	require.NoError(t, w.install(Options{}))
	require.NoError(t, w.remove())
	require.Equal(t, "the user's", w.read("usr/local/bin/kvtier"))
	require.NoError(t, os.Remove(w.at("usr/local/bin/kvtier")))
	w.packaged = true
	require.NoError(t, w.install(Options{}))
	require.NoFileExists(t, w.at("usr/local/bin/kvtier"))
}

// TestLinksOfAService: systemd's own links go with the directories behind them.
func TestLinksOfAService(t *testing.T) {
	t.Parallel()
	w := newService(t)
	require.NoError(t, w.install(Options{}))
	for _, dir := range []string{w.State, w.Logs} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "private"), 0o700))
		require.NoError(t, os.Rename(filepath.Join(dir, "kvtier"), filepath.Join(dir, "private", "kvtier")))
		require.NoError(t, os.Symlink("private/kvtier", filepath.Join(dir, "kvtier")))
	}
	require.NoError(t, w.remove())
	require.NoDirExists(t, w.at("var/lib/private/kvtier"))
	require.NoDirExists(t, w.at("var/log/private/kvtier"))
	_, err := os.Lstat(w.at("var/lib/kvtier"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestServerURL(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": "http://127.0.0.1:11434", "0.0.0.0": "http://127.0.0.1:11434", "0.0.0.0:80": "http://127.0.0.1:80", ":1234": "http://127.0.0.1:1234",
		"[::]:99": "http://127.0.0.1:99", "::1": "http://[::1]:11434", "http://box": "http://box:80", "https://box/x": "https://box:443",
		"box:99999": "http://box:11434", `"box:7"`: "http://box:7",
	} {
		require.Equal(t, want, serverURL(value), value)
	}
}

// TestServed: the variables are those that the service has, also without an answer of systemd.
func TestServed(t *testing.T) {
	t.Parallel()
	w := newService(t)
	_, ok := w.Served(t.Context())
	require.False(t, ok)

	require.NoError(t, w.install(Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL_GB": "7"}}))
	w.later = "OLLAMA_KV_TIER_LOCAL_GB=9 OLLAMA_MODELS=/models AWS_PROFILE=team LANG=C"
	s, ok := w.Served(t.Context())
	require.True(t, ok)
	require.Equal(t, Served{Service: "ollama.service", Variables: map[string]string{
		"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": w.at("var/lib/kvtier/pages"), "OLLAMA_KV_TIER_LOCAL_GB": "9", "OLLAMA_MODELS": "/models",
		"AWS_PROFILE": "team",
	}}, s)

	w.broken = "systemctl"
	s, ok = w.Served(t.Context())
	require.True(t, ok)
	require.Equal(t, "7", s.Variables["OLLAMA_KV_TIER_LOCAL_GB"])

	w.broken = ""
	w.write("etc/systemd/system/other.service.d/kvtier.conf", w.read(dropInFile), 0o644)
	_, ok = w.Served(t.Context())
	require.False(t, ok, "one of two")
}
