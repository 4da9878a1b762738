package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/stretchr/testify/require"
)

// fakeCMake configures, "builds" and installs one library, and logs its calls. FAKE_CMAKE
// names the fault to simulate.
func fakeCMake(args []string) int {
	log, err := os.OpenFile(os.Getenv("FAKE_CMAKE_LOG"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(log, strings.Join(args, " "))
	log.Close()
	switch args[0] {
	case "--build":
		return fakeCMakeBuild()
	case "--install":
		prefix, _ := os.ReadFile(filepath.Join(args[1], "prefix"))
		lib := filepath.Join(string(prefix), "lib", "ollama", "libggml-cpu.so")
		err = os.MkdirAll(filepath.Dir(lib), 0o755)
		if err == nil {
			err = os.WriteFile(lib, nil, 0o644)
		}
	default:
		err = fakeCMakeConfigure(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func fakeCMakeConfigure(args []string) error {
	source, build, prefix := args[1], args[3], ""
	for _, arg := range args {
		if p, ok := strings.CutPrefix(arg, "-DCMAKE_INSTALL_PREFIX="); ok {
			prefix = p
		}
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	cache := "# cache\nCMAKE_GENERATOR:INTERNAL=Unix Makefiles\nCMAKE_HOME_DIRECTORY:INTERNAL=" + filepath.ToSlash(source) + "\n"
	if err := os.WriteFile(filepath.Join(build, "CMakeCache.txt"), []byte(cache), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(build, "prefix"), []byte(prefix), 0o644)
}

func fakeCMakeBuild() int {
	switch os.Getenv("FAKE_CMAKE") {
	case "fail":
		for i := range 40 {
			fmt.Printf("[%d/40] line %d\n", i+1, i+1)
		}
		return 1
	case "hang":
		// A compiler of ninja's: a grandchild that only patch-ollama will stop.
		child, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{Files: []*os.File{nil, os.Stdout, os.Stderr}})
		if err != nil {
			return 1
		}
		_ = os.WriteFile(os.Getenv("FAKE_CMAKE_LOG")+".pid", []byte(strconv.Itoa(child.Pid)), 0o644)
		_, _ = child.Wait()
		return 0
	default:
		fmt.Println("[1/2] one\n[2/2] two")
		return 0
	}
}

// forBuild gives the world all tools, with fakeCMake as cmake.
func (w *world) forBuild() *world {
	w.t.Helper()
	if runtime.GOOS == "darwin" && runtime.GOARCH == "arm64" {
		w.t.Skip("no CMake step on Apple silicon")
	}
	w.onlyTools("git", "go", "cc", "c++", "cmake")
	w.t.Setenv("FAKE_CMAKE_LOG", w.cmakeLog())
	return w
}

func (w *world) cmakeLog() string { return filepath.Join(filepath.Dir(w.root), "cmake.log") }

// cmakeCalls returns fakeCMake's log and empties it.
func (w *world) cmakeCalls() []string {
	w.t.Helper()
	data, err := os.ReadFile(w.cmakeLog())
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(w.t, err)
	require.NoError(w.t, os.Remove(w.cmakeLog()))
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func TestBuild(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	r := w.run("build", "--src", w.clone, "-j", "1")
	require.Zero(t, r.status, r.stderr)
	require.Equal(t, "build/ollama/bin/ollama "+ollamasrc.BuildVersion(t.Context(), w.root, "v0.16.1")+"\n", r.stdout)
	require.Regexp(t, `^fetch v0\.16\.1     [\d.]+s
apply             2 patches applied
cmake configure   [\d.]+s
cmake build       [\d.]+s
cmake install     [\d.]+s
go build          [\d.]+s
$`, r.stderr)

	for _, c := range r.stdout + r.stderr { // no terminal
		require.True(t, c == '\n' || c >= ' ', "%q", c)
	}

	calls := w.cmakeCalls()
	dir := w.path("build/ollama")
	require.Equal(t, []string{
		"-S " + dir + "/src -B " + dir + "/cmake -DCMAKE_INSTALL_PREFIX=" + dir + " -DCMAKE_DISABLE_FIND_PACKAGE_Vulkan=ON -DCMAKE_HIP_COMPILER=NOTFOUND -DCMAKE_CUDA_COMPILER=NOTFOUND",
		"--build " + dir + "/cmake --config Release --parallel 1",
		"--install " + dir + "/cmake --config Release --component CPU --strip",
	}, calls)
	require.Equal(t, "go 1.24.1\n\nuse (\n\t./src\n\t../..\n)\n", w.read(w.path("build/ollama/go.work")))

	out := w.ok("status")
	require.Contains(t, out, "binary      build/ollama/bin/ollama "+ollamasrc.BuildVersion(t.Context(), w.root, "v0.16.1")+"\nlibraries   libggml-cpu.so\n")
	require.Contains(t, out, "tree        clean")
}

func TestBuildIsIncremental(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.ok("build", "--src", w.clone)
	require.Len(t, w.cmakeCalls(), 3)

	r := w.run("build")
	require.Zero(t, r.status)
	require.Contains(t, r.stderr, "apply             2 patches already applied\ncmake             up to date\n")
	require.Empty(t, w.cmakeCalls())

	w.commit("main.go", upstreamFiles["main.go"]+"// go only\n", "main: touch")
	w.ok("build")
	require.Empty(t, w.cmakeCalls(), "a change to Go files alone")

	w.commit("ml/backend/ggml/ggml.c", "int other;\n", "ggml: touch")
	w.ok("build")
	require.Len(t, w.cmakeCalls(), 3)

	require.NoError(t, os.RemoveAll(w.path("build/ollama/lib")))
	w.ok("build")
	require.Len(t, w.cmakeCalls(), 3, "the libraries were removed")

	w.ok("build", "--no-cuda=false", "-j", "1")
	require.Empty(t, w.cmakeCalls(), "the number of jobs does not change the result")
}

// CMake cannot reuse the build tree of a moved checkout.
func TestBuildAfterMove(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.ok("build", "--src", w.clone)
	w.cmakeCalls()
	w.write(w.path("build/ollama"), "cmake/object.o", "stale")
	moved := w.root + "-moved"
	require.NoError(t, os.Rename(w.root, moved))
	w.root = moved
	t.Chdir(moved)
	w.ok("build")
	require.Len(t, w.cmakeCalls(), 3)
	require.NoFileExists(t, w.path("build/ollama/cmake/object.o"))
}

func TestBuildFollowsTheTree(t *testing.T) {
	w := newWorld(t).forBuild()
	w.ok("fetch", "--src", w.clone, "--version", "v0.17.4")
	require.Equal(t, "build/ollama/bin/ollama "+ollamasrc.BuildVersion(t.Context(), w.root, "v0.17.4")+"\n", w.ok("build"))
	require.Contains(t, w.refused("build", "--version", "v0.16.1"), "holds Ollama v0.17.4 from a clone")
}

func TestBuildFailure(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	t.Setenv("FAKE_CMAKE", "fail")
	r := w.run("build", "--src", w.clone)
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "cmake build       failed after")
	require.Contains(t, r.stderr, "Error: cmake build failed (exit status 1); the last 30 lines of build/ollama/log/cmake-build.log:\n\n[11/40] line 11\n")
	require.Contains(t, r.stderr, "[40/40] line 40\n")
	require.NotContains(t, r.stderr, "line 10\n")
	require.Contains(t, w.read(w.path("build/ollama/log/cmake-build.log")), "line 1\n")

	t.Setenv("FAKE_CMAKE", "")
	w.ok("build")
}

func TestBuildGoFailure(t *testing.T) {
	w := newWorld(t).forBuild().fetched()
	w.commit("main.go", "package main\n\nfunc main() { undefined() }\n", "main: break")
	require.Contains(t, w.refused("build"), "main.go:3:15: undefined: undefined")
}

func TestBuildDirtyTree(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.ok("build", "--src", w.clone)
	w.write(w.src(""), "dirty.go", "package main\n\nfunc init() { println(\"dirty\") }\n")
	require.Contains(t, w.refused("build"), "has uncommitted changes (?? dirty.go)")
	w.ok("build", "--allow-dirty")
	require.Contains(t, w.read(w.src("dirty.go")), "dirty")
}

func TestBuildMissingTools(t *testing.T) {
	w := newWorld(t).fetched()
	w.onlyTools("git", "go", "cc", "c++")
	require.Equal(t, "building needs cmake, which was not found on PATH; on Debian or Ubuntu: apt install git cmake ninja-build build-essential (Go from https://go.dev/dl)",
		w.refused("build"))
	w.onlyTools("git", "cmake")
	require.Contains(t, w.refused("build"), "building needs go, a C compiler, a C++ compiler, which were not found on PATH")
}

// Ctrl-C ends the compilers, too, at once.
func TestBuildInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("process groups are tested on Unix")
	}
	alive := func(pid int) bool {
		if stat, err := proc.Read(pid); err == nil {
			return !stat.Ended() // a zombie, whose parent has not waited for it yet, does not run
		}
		process, err := os.FindProcess(pid)
		return err == nil && process.Signal(syscall.Signal(0)) == nil
	}
	w := newWorld(t).forBuild().fetched()
	t.Setenv("FAKE_CMAKE", "hang")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan result, 1)
	go func() { done <- w.runContext(ctx, "build") }()
	var pid []byte
	require.Eventually(t, func() bool {
		pid, _ = os.ReadFile(w.cmakeLog() + ".pid")
		return len(pid) > 0
	}, 20*time.Second, 10*time.Millisecond)
	cancel()
	select {
	case r := <-done:
		require.Equal(t, cli.Interrupted, r.status)
		require.True(t, strings.HasSuffix(r.stderr, "interrupted\n"), r.stderr)
	case <-time.After(20 * time.Second):
		t.Fatal("the build goes on")
	}
	n, err := strconv.Atoi(string(pid))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !alive(n) }, 20*time.Second, 10*time.Millisecond)
	require.Contains(t, w.ok("status"), "none; run patch-ollama build")
}
