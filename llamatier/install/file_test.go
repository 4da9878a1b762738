//go:build unix

package install

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const lib = "usr/local/lib/ollama/"

// newFolder is a machine on which somebody has unpacked Ollama.
func newFolder(t *testing.T) *world {
	w := newWorld(t)
	w.tarball("usr/local", stockServer)
	return w
}

func TestInstallByFile(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	before := w.tree()
	p := w.plan("install", Options{})
	require.Equal(t, `keep Ollama's /usr/local/lib/ollama/llama-server as llama-server-real
copy kvtier 0.1.0 to /usr/local/lib/ollama.kvtier, and link /usr/local/bin/kvtier to it
put kvtier 0.1.0 in the place of /usr/local/lib/ollama/llama-server
run /usr/local/lib/ollama/llama-server --version: it must reach the real llama-server
An update of Ollama puts its own llama-server back: run /usr/local/bin/kvtier ollama install --prefix /usr/local after it.
Then: Nothing is stored until Ollama runs with tiering on: OLLAMA_KV_TIERING=1 /usr/local/bin/ollama serve
`, w.shown(p))
	require.Equal(t, before, w.tree(), "a plan changes nothing")
	require.Equal(t, None, w.state().State)

	require.NoError(t, p.Do(t.Context(), func(Step) {}))
	require.Equal(t, ourServer, w.read(lib+"llama-server"))
	require.Equal(t, stockServer, w.read(lib+"llama-server-real"))
	require.Equal(t, []string{"/usr/local/lib/ollama/llama-server --version"}, w.ran)
	s := w.state()
	require.Equal(t, Installed, s.State)
	require.Equal(t, "0.1.0", s.Kvtier)
	require.False(t, s.Bad())

	// Once more, and with a newer version.
	again := w.plan("install", Options{})
	require.Empty(t, again.Steps)
	w.write("kit/kvtier", newServer, 0o755)
	require.NoError(t, w.install(Options{}))
	require.Equal(t, newServer, w.read(lib+"llama-server"))
	require.Equal(t, stockServer, w.read(lib+"llama-server-real"))
	w.write("kit/kvtier", ourServer, 0o755)

	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())
	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())

	// A server that runs with tiering on needs no advice.
	w.serve("usr/local/bin/ollama")
	w.write("proc/9/environ", "OLLAMA_KV_TIERING=1\x00", 0o644)
	require.Empty(t, w.plan("install", Options{}).Last)
}

// TestCommandByFile: kvtier is in PATH afterwards, also after Ollama's updater removed its folder, and goes with
// the installation.
func TestCommandByFile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		uid  int
		link string
	}{
		"root": {0, "usr/local/bin/kvtier"},
		"user": {1000, "home/me/.local/bin/kvtier"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFolder(t)
			w.UID, w.owner = tc.uid, tc.uid
			require.NoError(t, os.MkdirAll(w.sys.home, 0o755))
			before := w.tree()
			plan := w.shown(w.plan("install", Options{}))
			require.Equal(t, tc.uid != 0, strings.Contains(plan, "Then: /home/me/.local/bin is not in PATH: run export PATH="), plan)
			require.NoError(t, w.install(Options{}))
			require.Equal(t, ourServer, w.read(tc.link))
			require.NoError(t, os.RemoveAll(w.at(lib)))
			w.tarball("usr/local", nextServer)
			require.Equal(t, ourServer, w.read(tc.link), "an update of Ollama leaves it")

			// It is the program that puts itself back.
			w.sys.path += ":" + filepath.Dir(w.at(tc.link))
			require.NotContains(t, w.shown(w.plan("install", Options{})), "is not in PATH")
			require.NoError(t, os.Rename(w.at("kit/kvtier"), w.at("kit/other")))
			require.NoError(t, os.Symlink(w.at("usr/local/lib/ollama.kvtier"), w.at("kit/kvtier")))
			require.NoError(t, w.install(Options{}))
			require.Equal(t, ourServer, w.read(lib+"llama-server"))

			// A newer one takes its place.
			require.NoError(t, os.Rename(w.at("kit/other"), w.at("kit/kvtier")))
			w.write("kit/kvtier", newServer, 0o755)
			require.NoError(t, w.install(Options{}))
			require.Equal(t, newServer, w.read(tc.link))
			w.write("kit/kvtier", ourServer, 0o755)
			require.NoError(t, w.remove())
			w.tarball("usr/local", stockServer)
			require.Equal(t, before, w.tree())
		})
	}
}

// TestCommandsThatStay: a link is made over nobody's file.
func TestCommandsThatStay(t *testing.T) {
	t.Parallel()
	for name, lay := range map[string]func(*world){
		"the user's":     func(w *world) { w.write("usr/local/bin/kvtier", "the user's", 0o755) },
		"elsewhere":      func(w *world) { w.packaged = true },
		"no such folder": func(w *world) { w.Bin = w.at("none") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFolder(t)
			lay(w)
			before := w.tree()
			p := w.plan("install", Options{})
			require.Equal(t, !w.packaged, strings.Contains(w.shown(p), "Then: kvtier is not in PATH: run it as /kit/kvtier, also after an update of Ollama.\n"), w.shown(p))
			require.NoError(t, w.install(Options{}))
			require.NoFileExists(t, w.at("usr/local/lib/ollama.kvtier"))
			require.NoError(t, w.remove())
			require.Equal(t, before, w.tree())
		})
	}
}

// TestDataByFile: remove says where pages and the log are.
func TestDataByFile(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	require.NoError(t, w.install(Options{}))
	p := w.plan("remove", Options{})
	require.Contains(t, w.shown(p), "the log ~/.ollama/logs/kvtier.log stay. Pages hold conversations: remove both when nobody needs them.\n")

	w.serve("usr/local/bin/ollama")
	w.write("proc/9/environ", "HOME=/home/me\x00", 0o644)
	p = w.plan("remove", Options{})
	require.Contains(t, w.shown(p), "Pages in /home/me/.ollama/kv-cache and the log /home/me/.ollama/logs/kvtier.log stay.")
	w.write("proc/9/environ", "HOME=/home/me\x00OLLAMA_KV_TIER_LOCAL=/fast\x00KVTIER_LLAMA_LOG=/log\x00", 0o644)
	p = w.plan("remove", Options{})
	require.Contains(t, w.shown(p), "Pages in /fast and the log /log stay.")
}

// TestBrokenOffByFile: wherever install or remove is broken off, Ollama's llama-server can be
// run, and both commands lead to their end.
func TestBrokenOffByFile(t *testing.T) {
	t.Parallel()
	points := map[string]int{}
	for _, from := range []string{"stock", "installed", "updated"} {
		for _, verb := range []string{"install", "remove"} {
			for _, then := range []string{"install", "remove"} {
				for n := 1; ; n++ {
					w := newFolder(t)
					if from != "stock" {
						require.NoError(t, w.install(Options{}))
					}
					if from == "updated" {
						w.write(lib+"llama-server", nextServer, 0o755)
					}
					w.write("kit/kvtier", newServer, 0o755)
					if !w.breakOff(n, func() error { return w.do(verb, Options{}) }) {
						break // no change more
					}
					points[verb]++
					want := stockServer
					if from == "updated" {
						want = nextServer
					}
					w.requireRuns(want)
					_ = w.state() // it fails on no tree
					require.NoError(t, w.do(then, Options{}), "%s, %s broken off before change %d, then %s", from, verb, n, then)
					w.requireRuns(want)
					if then == "install" {
						require.Equal(t, Installed, w.state().State)
						require.NoError(t, w.remove())
					}
					require.Equal(t, None, w.state().State)
					clean := newWorld(t)
					clean.tarball("usr/local", want)
					clean.write("kit/kvtier", newServer, 0o755)
					require.Equal(t, clean.tree(), w.tree())
				}
			}
		}
	}
	require.Greater(t, points["install"], 20)
	require.Greater(t, points["remove"], 5)
}

// requireRuns: llama-server is the stock one, or ours before the stock one.
func (w *world) requireRuns(stock string) {
	w.t.Helper()
	if server := w.read(lib + "llama-server"); server != stock {
		require.Contains(w.t, []string{ourServer, newServer}, server)
		require.Equal(w.t, stock, w.read(lib+"llama-server-real"))
	}
}

// TestHugeServer: a file that is too large for a llama-server is not read.
func TestHugeServer(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	require.NoError(t, os.Truncate(w.at(lib+"llama-server"), serverBytesMax+1)) // takes no room
	s := w.state()
	require.Equal(t, Broken, s.State)
	require.Equal(t, []string{w.at(lib+"llama-server") + " is no llama-server: it has more than 2 GiB; install Ollama again."}, s.Hints)
	require.ErrorContains(t, w.install(Options{}), "more than 2 GiB")
}

// TestUpdateOfOllama: an update's llama-server is never replaced by the older one.
func TestUpdateOfOllama(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	require.NoError(t, w.install(Options{}))
	w.write(lib+"llama-server", nextServer, 0o755)
	s := w.state()
	require.Equal(t, Replaced, s.State)
	require.True(t, s.Bad())
	require.Equal(t, []string{"The installation of kvtier in " + w.at("usr/local/lib/ollama") + " was replaced by an update of Ollama, so no model is tiered. " +
		"Run " + w.at("kit/kvtier") + " ollama install --prefix " + w.at("usr/local") + "."}, w.Updates())
	require.Equal(t, []string{"An update of Ollama has put its own llama-server back; run " + s.Cure + "."}, s.Hints)
	require.Equal(t, w.at("kit/kvtier")+" ollama install --prefix "+w.at("usr/local"), s.Cure)
	require.NoError(t, w.install(Options{}))
	w.requireRuns(nextServer)
	require.Equal(t, Installed, w.state().State)
	w.write(lib+"llama-server", stockServer, 0o755)
	require.NoError(t, w.remove())
	require.Equal(t, stockServer, w.read(lib+"llama-server"))
	require.NoFileExists(t, w.at(lib+"llama-server-real"))

	// The updater removes the folder, and may bring the same files.
	for _, brings := range []string{nextServer, stockServer} {
		require.NoError(t, w.install(Options{}))
		require.NoError(t, os.RemoveAll(w.at(lib)))
		w.tarball("usr/local", brings)
		s = w.state()
		require.Equal(t, Replaced, s.State)
		require.True(t, s.Bad())
		require.NoError(t, w.install(Options{}))
		w.requireRuns(brings)
		require.NoError(t, os.RemoveAll(w.at(lib)))
		w.tarball("usr/local", brings)
		require.NoError(t, w.remove())
		require.Equal(t, None, w.state().State)
	}
}

// TestAServerThatRuns is shown, wherever its files are, and its installation is not changed unasked.
func TestAServerThatRuns(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	w.tarball("home/a", stockServer)
	w.serve("home/a/bin/ollama")
	w.write("proc/9/status", "Uid:\t1234\t1234\t1234\t1234\n", 0o644)
	require.Equal(t, w.at("usr/local/lib/ollama"), w.state().Folder, "another user's is not believed")
	running := func() Status {
		all, err := w.Status(t.Context(), Choice{}, "")
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Equal(t, w.at("home/a/lib/ollama"), all[1].Folder)
		return all[1]
	}
	w.Sudo, w.owner, w.broken = 1234, 1234, w.at("home/a/bin/ollama")
	s := running()
	require.Equal(t, None, s.State)
	require.Empty(t, s.Ollama, "root does not run the program of the user who ran sudo")
	require.Regexp(t, "^[^ ]*kvtier ollama install --prefix "+w.at("home/a")+"$", s.Cure)
	w.write("proc/9/status", "Uid:\t0\t0\t0\t0\n", 0o644)
	w.Sudo, w.owner, w.broken = 0, 0, ""
	s = running()
	require.Equal(t, w.says, s.Ollama)
	w.Sudo = 4321
	require.Regexp(t, "^sudo [^ ]*kvtier ollama install --prefix "+w.at("home/a")+"$", running().Cure, "who ran sudo is not root")
	w.owner = 65534
	require.Regexp(t, "^sudo -u nobody [^ ]*kvtier ollama install --prefix "+w.at("home/a")+"$", running().Cure, "root changes nothing there")
	w.Sudo, w.owner = 0, 0
	require.NoError(t, w.install(Options{}))
	require.Equal(t, stockServer, w.read("home/a/lib/ollama/llama-server"))
}

// TestAFileThatFails: whatever change fails, the folder, its note and the command are as before.
func TestAFileThatFails(t *testing.T) {
	t.Parallel()
	for from, lay := range map[string]func(*world){
		"stock":     func(*world) {},
		"installed": func(w *world) { require.NoError(w.t, w.install(Options{})) },
		"no command": func(w *world) {
			w.packaged = true
			require.NoError(w.t, w.install(Options{}))
			w.packaged = false
		},
		"updated": func(w *world) {
			require.NoError(w.t, w.install(Options{}))
			require.NoError(w.t, os.RemoveAll(w.at(lib)))
			w.tarball("usr/local", nextServer)
		},
	} {
		for _, uid := range []int{0, 1000} {
			start := func() (*world, []string) {
				w := newFolder(t)
				w.UID, w.owner = uid, uid
				lay(w)
				w.write("kit/kvtier", newServer, 0o755)
				return w, w.tree()
			}
			for n := 1; ; n++ {
				w, before := start()
				state := w.state().State
				if !w.failOnce(n, func() error { return w.install(Options{}) }) {
					require.Greater(t, n, 5)
					require.Equal(t, "0.2.0", w.state().Kvtier)
					break
				}
				require.Equal(t, before, w.tree(), "%s, change %d", from, n)
				require.Equal(t, state, w.state().State)
			}
			w, before := start()
			w.broken = w.at(lib + "llama-server")
			require.ErrorContains(t, w.install(Options{}), "it is broken: permission denied; its filesystem may be mounted with noexec, or SELinux may forbid it: try restorecon -v ")
			require.Equal(t, before, w.tree(), from)
		}
	}
}

// has lays a file into Ollama's folder.
func has(name, content string, mode fs.FileMode) func(*world) {
	return func(w *world) { w.write(lib+name, content, mode) }
}

// both lays what two functions lay.
func both(one, two func(*world)) func(*world) { return func(w *world) { one(w); two(w) } }

// inPlace lays something in the place of llama-server.
func inPlace(lay func(path string) error) func(*world) {
	return func(w *world) {
		require.NoError(w.t, os.Remove(w.at(lib+ServerName)))
		require.NoError(w.t, lay(w.at(lib+ServerName)))
	}
}

// leadsAway lays a link to a secret of another place.
func leadsAway(link, secret string) func(*world) {
	return func(w *world) {
		w.write("secret", secret, 0o600)
		require.NoError(w.t, os.Symlink(w.at("secret"), w.at(link)))
	}
}

// TestHostileTrees: files that no installation leaves are refused, and stay.
func TestHostileTrees(t *testing.T) {
	t.Parallel()
	const real, other = "llama-server-real", "\x7fELF another program\n"
	installed := func(w *world) { require.NoError(w.t, w.install(Options{})) }
	for name, tc := range map[string]struct {
		lay             func(*world)
		install, remove string // errors; "" works, "-" does nothing
		state           state
	}{
		"ours without the real one": {
			has(ServerName, ourServer, 0o755),
			"llama-server-real is gone, so no model can be loaded; install Ollama again, then kvtier", "is gone, so no model", Broken,
		},
		"ours twice": {
			both(has(ServerName, ourServer, 0o755), has(real, newServer, 0o755)),
			"llama-server-real is kvtier's, too; install Ollama again", "is kvtier's, too", Broken,
		},
		"another real one": {
			has(real, other, 0o755), "nothing says that kvtier put it there", "nothing says that kvtier put it there", Replaced,
		},
		"another real one behind ours": {
			both(installed, has(real, other, 0o755)),
			"is not the file that install set aside", "is not the file that install set aside", Broken,
		},
		"by hand":                           {both(has(real, stockServer, 0o755), has(ServerName, newServer, 0o755)), "", "", Installed},
		"by hand, no further than the copy": {has(real, stockServer, 0o755), "", "", Interrupted},
		"by hand, no further than the move": {
			func(w *world) { require.NoError(w.t, os.Rename(w.at(lib+ServerName), w.at(lib+real))) },
			"no Ollama|is gone|no llama-server", "", Interrupted,
		},
		"a directory in its place": {
			inPlace(func(path string) error { return os.Mkdir(path, 0o755) }),
			"llama-server is not a file", "llama-server is not a file", Broken,
		},
		"a FIFO in its place": {
			inPlace(func(path string) error { return syscall.Mkfifo(path, 0o755) }),
			"llama-server is not a file", "llama-server is not a file", Broken,
		},
		"a link to nothing": {
			inPlace(func(path string) error { return os.Symlink("nowhere", path) }),
			"is a link to a file that does not exist", "is a link to a file that does not exist", Broken,
		},
		"empty":      {has(ServerName, "", 0o755), "has no llama-server", "-", Unsupported},
		"no program": {has(ServerName, stockServer, 0o644), "cannot be run, its mode is 0644", "cannot be run", Broken},
		"a note that is a link": {
			leadsAway(noteOf(filepath.Clean(lib)), "{}"), "was not written by kvtier", "was not written by kvtier", Broken,
		},
		"a link in the place of the new file": {leadsAway(lib+ServerName+newSuffix, "secret"), "", "", Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			for verb, want := range map[string]string{"install": tc.install, "remove": tc.remove} {
				w := newFolder(t)
				tc.lay(w)
				before := w.tree()
				require.Equal(t, tc.state, w.state().State)
				err := w.do(verb, Options{})
				if want == "-" {
					require.NoError(t, err)
					require.Equal(t, before, w.tree())
					continue
				}
				if want != "" {
					require.Error(t, err)
					require.Regexp(t, want, err.Error())
					require.Equal(t, before, w.tree())
					continue
				}
				require.NoError(t, err)
				w.requireRuns(stockServer)
				require.NoError(t, w.remove())
				require.Equal(t, stockServer, w.read(lib+"llama-server"))
				require.NoFileExists(t, w.at(lib+"llama-server-real"))
				if _, err := os.Stat(w.at("secret")); err == nil {
					require.Equal(t, "secret", w.read("secret"))
				}
			}
		})
	}
}

// TestStalePlan: a plan is not carried out on other files than those that it was made for.
func TestStalePlan(t *testing.T) {
	t.Parallel()
	for _, start := range []func(*testing.T) *world{newFolder, newService} {
		w := start(t)
		p := w.plan("install", Options{})
		require.NoError(t, w.install(Options{}), "somebody else's")
		before := w.tree()
		require.ErrorContains(t, p.Do(t.Context(), func(Step) {}), "changed since the steps were shown; run the same command again")
		require.Equal(t, before, w.tree())
	}
}

// TestSearch: the installation is found by the program that runs, through links.
func TestSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sys.find = func(name string) (string, error) {
		return map[string]string{"ollama": w.at("home/bin/ollama"), "docker": "/usr/bin/docker"}[name], nil
	}
	run := w.sys.run
	w.sys.run = func(ctx context.Context, variables []string, name string, args ...string) (string, error) {
		if name == "docker" && args[0] == "ps" {
			return "c0\nc1\n", nil
		} else if name == "docker" {
			return `[{"Name":"/web","Config":{"Image":"nginx:latest"}},{"Name":"/llm","Config":{"Image":"ollama/ollama:rocm"}}]`, nil
		}
		return run(ctx, variables, name, args...)
	}
	require.ErrorContains(t, w.install(Options{}), "The container llm runs Ollama: docs/install.md has the lines for its image")
	_, err := w.Status(t.Context(), Choice{}, "")
	require.ErrorContains(t, err, "The container llm runs Ollama")

	w.tarball("opt/ollama", stockServer)
	require.NoError(t, os.MkdirAll(w.at("home/bin"), 0o755))
	require.NoError(t, os.Symlink("../../opt/ollama/bin/ollama", w.at("home/bin/ollama")))
	w.serve("opt/ollama/bin/ollama")
	w.write("proc/9/environ", "OLLAMA_HOST=box:1\x00HOME=/home/a\x00", 0o644)
	p := w.plan("install", Options{})
	require.Equal(t, w.at("opt/ollama/lib/ollama"), p.Ollama.Folder)
	require.Contains(t, w.shown(p), "Ollama is running: models that are loaded keep the stock llama-server until they are unloaded.\n")
	require.NoError(t, w.install(Options{Choice: Choice{Prefix: w.at("home")}}))
	s := w.state()
	require.Equal(t, Installed, s.State)
	require.Equal(t, "off", s.Tiering)
	require.Equal(t, "OLLAMA_KV_TIERING=1 "+w.at("opt/ollama/bin/ollama")+" serve", s.Cure)
	require.Equal(t, []string{"The server runs without OLLAMA_KV_TIERING=1, so stop it first; run " + s.Cure + "."}, s.Hints)
	require.Equal(t, "http://box:1", s.URL)
	require.Equal(t, "/home/a/.ollama/logs/kvtier.log", s.Log)
}

// TestMacOS: an archive is changed, the signed application is not.
func TestMacOS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sys.os = "darwin"
	w.write("usr/local/bin/ollama", "#!ollama\n", 0o755)
	w.write("usr/local/bin/llama-server", stockServer, 0o755)
	p := w.plan("install", Options{})
	require.Equal(t, w.at("usr/local/bin"), p.Ollama.Folder)
	require.Contains(t, p.Hints, "kvtier is built for macOS and stores pages there, but nobody has run it on macOS yet.")

	w.write("Applications/Ollama.app/Contents/Resources/ollama", "#!ollama\n", 0o755)
	w.write("Applications/Ollama.app/Contents/Resources/llama-server", stockServer, 0o755)
	require.NoError(t, os.Remove(w.at("usr/local/bin/ollama")))
	require.NoError(t, os.Symlink(w.at("Applications/Ollama.app/Contents/Resources/ollama"), w.at("usr/local/bin/ollama")))
	require.ErrorContains(t, w.install(Options{}), "is part of a signed application")
}

// TestLinkedServer: a package may put a link in Ollama's folder. The link's target has its
// libraries beside it, so the link is kept as a link.
func TestLinkedServer(t *testing.T) {
	t.Parallel()
	w := newFolder(t)
	require.NoError(t, os.Rename(w.at(lib+"llama-server"), w.at("usr/local/bin/llama-server")))
	require.NoError(t, os.Symlink("../../bin/llama-server", w.at(lib+"llama-server")))
	before := w.tree()
	require.NoError(t, w.install(Options{}))
	target, err := os.Readlink(w.at(lib + "llama-server-real"))
	require.NoError(t, err)
	require.Equal(t, "../../bin/llama-server", target)
	require.Equal(t, ourServer, w.read(lib+"llama-server"))
	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())
}

// TestFoldersThatCannotBeChanged: the error names the remedy, and nothing is changed.
func TestFoldersThatCannotBeChanged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		uid  int
		err  error
		says string
	}{
		{1000, syscall.EACCES, "/lib/ollama belongs to another user; run sudo KVTIER ollama install --root '/a b'"},
		{1000, syscall.EROFS, "/lib/ollama is on a filesystem that is mounted read-only"},
		{0, syscall.EACCES, "/lib/ollama cannot be changed: permission denied"},
	} {
		w := newFolder(t)
		w.UID = tc.uid
		w.Access = func(string) error { return tc.err }
		before := w.tree()
		require.ErrorContains(t, w.install(Options{}), strings.ReplaceAll(tc.says, "KVTIER", w.at("kit/kvtier")))
		require.Equal(t, before, w.tree())
	}
}

// TestProgramsOfOthers: a program that another user can change does not run with the rights
// of this user.
func TestProgramsOfOthers(t *testing.T) {
	t.Parallel()
	for _, lay := range []func(*world){
		func(w *world) { require.NoError(t, os.Chmod(w.at(lib), 0o777)) },
		func(w *world) { require.NoError(t, os.Chmod(w.at(lib+"llama-server"), 0o775)) },
		func(w *world) { w.owner = w.UID + 1 },
	} {
		w := newFolder(t)
		w.UID, w.owner = 1000, 1000
		lay(w)
		require.NoError(t, w.install(Options{}))
		require.Empty(t, w.ran)
	}
}

// TestRootInFoldersOfOthers: a user who can put a link in the place of a folder would have root write elsewhere.
func TestRootInFoldersOfOthers(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		lay  func(*world)
		says string
	}{
		"a group's":  {func(w *world) { require.NoError(t, os.Chmod(w.at(lib), 0o775)) }, "users besides root can change "},
		"above":      {func(w *world) { require.NoError(t, os.Chmod(w.at("usr"), 0o777)) }, "users besides root can change "},
		"nobody's":   {func(w *world) { w.owner = 4_000_000_000 }, "users besides root can change "},
		"a user's":   {func(w *world) { w.owner = 65534 }, "/lib/ollama belongs to nobody, who could lead root elsewhere; run sudo -u nobody KVTIER ollama install --root '/a b'"},
		"who asks's": {func(w *world) { w.owner, w.Sudo = 65534, 65534 }, "/lib/ollama belongs to nobody, who could lead root elsewhere; run KVTIER ollama install --root '/a b'"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := user.Lookup("nobody"); err != nil || me.Username == "nobody" {
				t.Skip("there is no user nobody")
			}
			w := newFolder(t)
			tc.lay(w)
			before := w.tree()
			require.ErrorContains(t, w.install(Options{}), strings.ReplaceAll(tc.says, "KVTIER", w.at("kit/kvtier")))
			require.Equal(t, before, w.tree())
			w.owner = 0
			for _, dir := range []string{lib, "usr"} {
				require.NoError(t, os.Chmod(w.at(dir), 0o755))
			}
			require.NoError(t, w.install(Options{}))
		})
	}
}

// TestTwoAtOnce: one is refused, wherever the other one is, and changes nothing of the other's.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T) *world{"file": newFolder, "service": newService} {
		for _, verb := range []string{"install", "remove"} {
			for n := 1; ; n++ {
				w := start(t)
				before, times := w.tree(), 0
				w.Change = func() error {
					if times++; times == n {
						p, err := w.planned(verb, Options{})
						require.True(t, err != nil || len(p.Steps) == 0 || strings.Contains(fmt.Sprint(p.Do(t.Context(), func(Step) {})), "another kvtier ollama install or remove is running"))
					}
					return nil
				}
				require.NoError(t, w.install(Options{}))
				w.Change = nil
				require.Equal(t, Installed, w.state().State)
				require.NoError(t, w.remove())
				if kind == "file" { // systemd has made directories
					require.Equal(t, before, w.tree())
				}
				if times < n {
					require.Greater(t, n, 8)
					break
				}
			}
		}
	}

	// A lock of a run that was killed locks nobody out.
	w := newFolder(t)
	before := w.tree()
	w.write("usr/local/lib/ollama.kvtier.lock", "", 0o600)
	require.NoError(t, w.install(Options{}))
	require.NoError(t, w.remove())
	require.Equal(t, before, w.tree())
}

// TestFileThatWasExchanged: root works in a folder of another user, who exchanges a file between
// root's look and root's read. root reads no other file, and waits for no pipe.
func TestFileThatWasExchanged(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	require.NoError(t, os.WriteFile(secret, []byte("root:secret"), 0o600))
	for name, exchange := range map[string]func(path string) error{
		"a link":       func(path string) error { return os.Symlink(secret, path) },
		"another name": func(path string) error { return os.Link(secret, path) },
		"a pipe":       func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a file":       func(path string) error { return os.WriteFile(path, []byte("another"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, ServerName)
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.NoError(t, os.Rename(path, path+".old"))
			require.NoError(t, exchange(path))

			_, err = digestOf(path, info)
			require.ErrorContains(t, err, "was replaced while it was looked at")
		})
	}
}
