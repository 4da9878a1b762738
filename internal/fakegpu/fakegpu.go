// Package fakegpu builds an emulated NVIDIA GPU for end-to-end tests: a ggml backend module,
// libggml-cuda.so, with which Ollama finds devices CUDA0, CUDA1 and so on where no card is.
// The CPU backend computes, and everything else is as on a card: memory that the CPU backend
// may not use, that is limited and begins as NaN, streams that compute after their delay
// while the host goes on, and transfers that wait for no stream. See module/settings.h for
// the environment variables, and [Build].
package fakegpu

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kvtier/kvtier/internal/ollamasrc"
)

// Module is the name of the file that [Build] writes.
const Module = "libggml-cuda.so"

// ErrUnavailable is the cause of a failure of [Build] where the module cannot be built at
// all: on another system than Linux, without a C++ compiler, or without a built Ollama.
var ErrUnavailable = errors.New("the emulated GPU cannot be built here")

// Build compiles the module into dir with $CXX or c++. It takes the headers and
// libggml-base.so of the Ollama in build/ollama, and must be built anew with it.
//
// Ollama loads the module from a folder beside its CPU backends, such as
// lib/ollama/cuda_v13. Its own folder or the one above must hold libggml-cpu-*.so.
func Build(dir string) error {
	layout, err := built()
	if err != nil {
		return err
	}
	base := filepath.Join(layout.Libraries(), "libggml-base.so")
	if _, err := os.Stat(base); err != nil {
		return fmt.Errorf("%w: run make first: %w", ErrUnavailable, err)
	}
	sources, err := filepath.Glob(filepath.Join(layout.Root, "internal", "fakegpu", "module", "*.cpp"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := append(flags(layout), sources...)
	args = append(args, base, "-Wl,--no-undefined", "-Wl,-rpath,$ORIGIN:$ORIGIN/..", "-ldl", "-pthread")
	return compile(args, filepath.Join(dir, Module))
}

// built is the layout of the Ollama in build/ollama of the checkout that the working directory is in.
func built() (ollamasrc.Layout, error) {
	root, err := ollamasrc.FindRoot()
	if err != nil {
		return ollamasrc.Layout{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return ollamasrc.NewLayout(root, filepath.Join(root, "build", "ollama"))
}

// An Installation is a built Ollama beside an emulated GPU.
type Installation struct {
	Binary string // ollama, to be started
	Driver string // a CUDA driver, for FAKEGPU_DRIVER and KVC_CUDA_LIBRARY
}

// Install makes an installation of the Ollama in build/ollama in a folder, by links to its files.
func Install(dir string) (Installation, error) {
	layout, err := built()
	if err != nil {
		return Installation{}, err
	}
	in := Installation{Binary: filepath.Join(dir, "bin", "ollama"), Driver: filepath.Join(dir, "libcuda.so.1")}
	libraries := filepath.Join(dir, "lib", "ollama")
	if err := Build(filepath.Join(libraries, "cuda_v13")); err != nil {
		return Installation{}, err
	}
	if err := buildDriver(layout.Root, in.Driver); err != nil {
		return Installation{}, err
	}
	files, err := filepath.Glob(filepath.Join(layout.Libraries(), "*"))
	if err != nil {
		return Installation{}, err
	}
	for _, file := range files {
		if err := os.Symlink(file, filepath.Join(libraries, filepath.Base(file))); err != nil {
			return Installation{}, err
		}
	}
	// The program looks for its libraries beside its own file, links resolved.
	if err := os.MkdirAll(filepath.Dir(in.Binary), 0o755); err != nil {
		return Installation{}, err
	}
	program, err := os.ReadFile(layout.Binary())
	if err != nil {
		return Installation{}, err
	}
	return in, os.WriteFile(in.Binary, program, 0o755)
}

// buildDriver compiles the driver that elastic's own tests use.
func buildDriver(root, out string) error {
	tests := filepath.Join(root, "elastic", "tests", "fakecuda")
	sources, err := filepath.Glob(filepath.Join(tests, "*.cpp"))
	if err != nil {
		return err
	}
	args := []string{"-std=c++17", "-O1", "-fPIC", "-shared", "-D_GNU_SOURCE", "-I", tests, "-I", filepath.Join(root, "elastic", "src")}
	return compile(append(args, sources...), out)
}

// flags are those of a ggml backend that is loaded at run time.
func flags(layout ollamasrc.Layout) []string {
	ggml := filepath.Join(layout.Src(), "ml", "backend", "ggml", "ggml")
	return []string{
		"-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-D_GNU_SOURCE",
		"-DGGML_BACKEND_DL", "-DGGML_BACKEND_SHARED", "-DGGML_BACKEND_BUILD", "-DGGML_SHARED",
		"-isystem", filepath.Join(ggml, "include"),
		"-isystem", filepath.Join(ggml, "src"),
		"-I", filepath.Join(layout.Root, "elastic", "tests", "fakecuda"),
	}
}

// compile puts the file in place at the end, whole: a process may have the earlier one mapped.
func compile(args []string, out string) error {
	compiler, err := exec.LookPath(cmp.Or(os.Getenv("CXX"), "c++"))
	if err != nil || runtime.GOOS != "linux" {
		return fmt.Errorf("%w: it needs Linux and a C++ compiler (CXX)", ErrUnavailable)
	}
	temp := fmt.Sprintf("%s.%d", out, os.Getpid())
	defer os.Remove(temp)
	printed, err := exec.Command(compiler, append(args, "-o", temp)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", filepath.Base(out), err, strings.TrimSpace(string(printed)))
	}
	return os.Rename(temp, out)
}
