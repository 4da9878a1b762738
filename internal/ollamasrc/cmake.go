package ollamasrc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/progress"
)

// cmakeStamp, in CMake's build tree, records the last build that was installed.
const cmakeStamp = "kvtier.stamp"

// pagedDir is the library of paged attention, in the checkout.
const pagedDir = "ggml-paged"

// cmakeInputs are the parts of Ollama's source that CMake reads for these components.
var cmakeInputs = []string{"CMakeLists.txt", "CMakePresets.json", "ml/backend/ggml"}

// cmakeArgs configures the CPU backends, and CUDA if its compiler is found. HIP and Vulkan
// are off even where installed: kvtier does not build them.
func cmakeArgs(lay Layout, opts BuildOptions, nvcc string) []string {
	args := []string{
		"-S", lay.Src(), "-B", lay.CMake(),
		// The default prefix is /usr/local.
		"-DCMAKE_INSTALL_PREFIX=" + lay.InstallPrefix(),
		"-DCMAKE_DISABLE_FIND_PACKAGE_Vulkan=ON",
		// CMake does not search for a language whose compiler is set to NOTFOUND.
		"-DCMAKE_HIP_COMPILER=NOTFOUND",
	}
	if _, err := exec.LookPath("ninja"); err == nil {
		args = append(args, "-G", "Ninja")
	}
	if nvcc == "" {
		return append(args, "-DCMAKE_CUDA_COMPILER=NOTFOUND")
	}
	args = append(args, "-DCMAKE_CUDA_COMPILER="+nvcc, "-DGGML_PAGED_DIR="+filepath.Join(lay.Root, pagedDir))
	if opts.CUDAArchitectures != "" {
		args = append(args, "-DCMAKE_CUDA_ARCHITECTURES="+opts.CUDAArchitectures)
	}
	return args
}

// libraries configures, builds and installs the backends, unless backends built from the
// same sources with the same arguments are installed.
func (b *builder) libraries(ctx context.Context) error {
	nvcc := ""
	if b.opts.CUDA {
		nvcc = findNVCC()
	}
	args := cmakeArgs(b.lay, b.opts, nvcc)
	stamp, err := cmakeDigest(b.lay, args, nvcc != "")
	if err != nil {
		return err
	}
	stampPath := filepath.Join(b.lay.CMake(), cmakeStamp)
	if old, err := os.ReadFile(stampPath); err == nil && string(old) == stamp {
		if libs, err := b.lay.Lib(); err == nil && len(libs) > 0 {
			b.report.Step("cmake").End("up to date", nil)
			return nil
		}
	}
	// From here until the stamp is written, the libraries may not match the sources.
	if err := os.Remove(stampPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = b.step(ctx, "cmake configure", func(*progress.Step) error {
		if err := dropForeignCache(b.lay, args); err != nil {
			return err
		}
		return runLogged(ctx, b.lay, "cmake configure", command(ctx, "cmake", args...), nil)
	})
	if err != nil {
		return err
	}
	err = b.step(ctx, "cmake build", func(s *progress.Step) error {
		cmd := command(ctx, "cmake", "--build", b.lay.CMake(), "--config", "Release", "--parallel", strconv.Itoa(b.opts.Jobs))
		return runLogged(ctx, b.lay, "cmake build", cmd, func(line string) {
			if done, total, ok := cmakeProgress(line); ok {
				s.Progress(int64(done), int64(total))
			}
		})
	})
	if err != nil {
		return err
	}
	if err := b.install(ctx, nvcc != ""); err != nil {
		return err
	}
	return os.WriteFile(stampPath, []byte(stamp), 0o644)
}

func cmakeDigest(lay Layout, args []string, cuda bool) (string, error) {
	sources, err := digestFiles(lay.Src(), cmakeInputs, nil)
	if err != nil {
		return "", err
	}
	if cuda { // the CUDA library takes the kernels from there
		paged, err := digestFiles(lay.Root, []string{pagedDir}, nil)
		if err != nil {
			return "", err
		}
		args = append(args, paged)
	}
	how := sha256.Sum256([]byte(strings.Join(args, "\x00")))
	return fmt.Sprintf("%s %x\n", sources, how), nil
}

// dropForeignCache removes a build tree that CMake would refuse to reuse: one
// made for another folder (the checkout was moved) or with another generator
// (ninja was installed since).
func dropForeignCache(lay Layout, args []string) error {
	cache, err := os.ReadFile(filepath.Join(lay.CMake(), "CMakeCache.txt"))
	if err != nil {
		return nil
	}
	home := strings.Contains(string(cache), "\nCMAKE_HOME_DIRECTORY:INTERNAL="+filepath.ToSlash(lay.Src())+"\n")
	wasNinja := strings.Contains(string(cache), "\nCMAKE_GENERATOR:INTERNAL=Ninja\n")
	isNinja := strings.Contains(strings.Join(args, " "), "-G Ninja")
	if home && wasNinja == isNinja {
		return nil
	}
	return os.RemoveAll(lay.CMake())
}

// install replaces all libraries. Removing them first keeps none of an older set, and leaves
// a running server its own, unlinked files: overwriting files in place would crash the
// server.
func (b *builder) install(ctx context.Context, cuda bool) error {
	return b.step(ctx, "cmake install", func(*progress.Step) error {
		if err := os.RemoveAll(b.lay.Libraries()); err != nil {
			return fmt.Errorf("removing the old libraries: %w", err)
		}
		components := []string{"CPU"}
		if cuda {
			components = append(components, "CUDA")
		}
		for _, component := range components {
			cmd := command(ctx, "cmake", "--install", b.lay.CMake(), "--config", "Release", "--component", component, "--strip")
			if err := runLogged(ctx, b.lay, "cmake install "+component, cmd, nil); err != nil {
				return err
			}
		}
		libs, err := b.lay.Lib()
		if err != nil {
			return err
		}
		if len(libs) == 0 {
			return fmt.Errorf("cmake installed no library in %s; see %s", Rel(b.lay.Libraries()), Rel(b.lay.Log()))
		}
		return b.besideBinary(libs)
	})
}

// besideBinary copies the libraries next to the binary on macOS: upstream's ml.LibOllamaPath
// is that folder there.
func (b *builder) besideBinary(libs []string) error {
	if runtime.GOOS != "darwin" {
		return nil
	}
	for _, lib := range libs {
		to := filepath.Join(filepath.Dir(b.lay.Binary()), lib)
		data, err := os.ReadFile(filepath.Join(b.lay.Libraries(), lib))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.RemoveAll(to) // not overwritten: a running server has it mapped
		}
		if err == nil {
			err = os.WriteFile(to, data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("copying %s beside the binary: %w", lib, err)
		}
	}
	return nil
}

var buildStatus = regexp.MustCompile(`^\[ *(\d+)(?:/(\d+)|%)\] `)

// cmakeProgress reads the status that ninja ("[12/345] ") and make ("[ 12%] ")
// put before each line.
func cmakeProgress(line string) (done, total int, ok bool) {
	m := buildStatus.FindStringSubmatch(line)
	if m == nil {
		return 0, 0, false
	}
	done, _ = strconv.Atoi(m[1])
	total, _ = strconv.Atoi(cmp.Or(m[2], "100"))
	return done, total, total > 0
}
