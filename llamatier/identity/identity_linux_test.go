package identity

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/launch"
)

// identify is the identity of a model that this process runs with some arguments.
func identify(t *testing.T, shape *llamastate.Shape, args ...string) map[string]string {
	dir := t.TempDir()
	model := filepath.Join(dir, "model.gguf")
	require.NoError(t, os.WriteFile(model, []byte("weights"), 0o600))
	c := launch.Command{Args: append([]string{"-m", model}, args...), Environ: []string{"LLAMA_ARG_FIT_TARGET=512"}}
	id, err := Of(c, nil, tierenv.Config{PageTokens: 256}, shape, os.Getpid(), digests.Open(filepath.Join(dir, "digests.json")))
	require.NoError(t, err)
	return id
}

// TestIdentityNamesTheCacheType: tools show it. Slots of another shape have other pages, too.
func TestIdentityNamesTheCacheType(t *testing.T) {
	identity := func(row int64) map[string]string {
		shape := &llamastate.Shape{Version: 2, Caches: []llamastate.Cache{{
			Kind: llamastate.Full, Streams: 1, Layers: 1,
			Tensors: [2][]llamastate.Tensor{{{Type: 8, Row: row}}, {{Type: 1, Row: row}}},
		}}}
		return identify(t, shape)
	}
	one, other := identity(64), identity(128)
	require.Equal(t, "q8_0/f16", one[tierenv.KeyCacheType])
	require.Len(t, one[tierenv.KeyShape], 64)
	require.NotEqual(t, tierenv.Fingerprint(one), tierenv.Fingerprint(other))
}

// TestTheSplitOfLayersCounts where a device may compute besides the CPU.
func TestTheSplitOfLayersCounts(t *testing.T) {
	dir := t.TempDir()
	numerics := func(args ...string) string { return identify(t, &llamastate.Shape{}, args...)[tierenv.KeyNumerics] }
	const split = "-ngl 16 LLAMA_ARG_FIT_TARGET=512"
	require.Contains(t, numerics("-ngl", "16"), split, "which libraries compute is not known")
	mapLibrary(t, filepath.Join(dir, "libggml-cpu-haswell.so"))
	require.Equal(t, numerics("-ngl", "16"), numerics("--main-gpu", "1"))
	mapLibrary(t, filepath.Join(dir, "libggml-cuda.so"))
	require.Contains(t, numerics("-ngl", "16"), split)
}

// TestALibraryThatChoosesByTheProcessor: its version counts, and the processor.
func TestALibraryThatChoosesByTheProcessor(t *testing.T) {
	identity := func() map[string]string { return identify(t, &llamastate.Shape{}) }
	dir, before := t.TempDir(), identity()
	mapLibrary(t, filepath.Join(dir, "libopenblasp-r0.3.21.so"))
	with := identity()
	require.NotEqual(t, before[tierenv.KeyEngine], with[tierenv.KeyEngine])
	text, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	for _, kind := range processors(string(text)) {
		require.Contains(t, with[tierenv.KeyNumerics], kind)
	}
	const cores = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Xeon  4\nflags\t: fpu\n\nprocessor\t: 1\nmodel\t\t: 207\nCPU part\t: 0xd40\n"
	require.Equal(t, []string{"CPU part : 0xd40", "cpu family : 6", "model : 207", "model name : Xeon 4"}, processors(cores))
}

// mapLibrary has this process map a library until the test ends.
func mapLibrary(t *testing.T, path string) {
	require.NoError(t, os.WriteFile(path, []byte("code"), 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ, unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
}

// TestAStaticProgramHasADriver, by which its GPUs are found.
func TestAStaticProgramHasADriver(t *testing.T) {
	p, err := code(os.Getpid())
	require.NoError(t, err)
	require.Empty(t, p.drivers)
	path := filepath.Join(t.TempDir(), "libvulkan.so.1")
	mapLibrary(t, path)
	p, err = code(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, []string{path}, p.drivers)
}
