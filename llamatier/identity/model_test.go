package identity

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestAdapterOnTheWholePrompt: rows that depend on tokens behind their own must not be stored.
func TestAdapterOnTheWholePrompt(t *testing.T) {
	write := func(values map[string]any) string {
		kv := ggml.KV{"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float32(16)}
		for key, value := range values {
			kv[key] = value
		}
		return testmodel.Head(t, kv)
	}
	usual := write(nil)
	require.NoError(t, wholly(usual))
	require.ErrorContains(t, wholly(write(map[string]any{invocation: []uint32{7, 8}})), "behind certain tokens only")

	content, err := os.ReadFile(usual)
	require.NoError(t, err)
	for size := range len(content) {
		cut := filepath.Join(t.TempDir(), "cut.gguf")
		require.NoError(t, os.WriteFile(cut, content[:size], 0o600))
		require.Error(t, wholly(cut), "%d of %d bytes", size, len(content))
	}
}

// TestTokensOfAGap have keys of today, older ones, or texts that llama.cpp knows.
func TestTokensOfAGap(t *testing.T) {
	m, err := ReadModel(testmodel.Head(t, ggml.KV{"general.architecture": "llama", "tokenizer.ggml.tokens": []string{"a", "<PRE>", "▁<SUF>", "b", "<|file_sep|>"},
		"tokenizer.ggml.fim_pre_token_id": uint32(3), "tokenizer.ggml.fim_mid_token_id": uint32(0), "tokenizer.ggml.middle_token_id": uint32(1), "tokenizer.ggml.suffix_token_id": uint32(7), "tokenizer.ggml.fim_rep_token_id": uint32(5)}))
	require.NoError(t, err)
	require.Equal(t, map[string]int32{"pre": 3, "suf": 2, "mid": 1, "sep": 4}, m.Infill)
}

// TestModelThatLies: lengths that a file does not have are an error, and end no daemon.
func TestModelThatLies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	for _, length := range []uint64{1 << 40, 1 << 62, math.MaxUint64} {
		head := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
		for _, n := range []uint64{0, 1, length} { // tensors, values, bytes of the first key
			head = binary.LittleEndian.AppendUint64(head, n)
		}
		require.NoError(t, os.WriteFile(path, head, 0o600))
		_, err := ReadModel(path)
		require.ErrorIs(t, err, sizing.ErrNotGGUF)
		require.ErrorIs(t, wholly(path), sizing.ErrNotGGUF)
	}
}

// TestDevices: kinds of GPUs, each once, and only where the engine has the library.
func TestDevices(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	const nvidia, amd = "proc/driver/nvidia/gpus/", "sys/class/kfd/kfd/topology/nodes/"
	write(nvidia+"0000:01:00.0/information", "Model: \t\t Quadro M6000 24GB\nIRQ:   \t\t 95\n")
	write(nvidia+"0000:02:00.0/information", "Model: \t\t Quadro M6000 24GB\n")
	write(nvidia+"0000:03:00.0/information", "Model: \t\t NVIDIA GeForce GTX 1070\n")
	write(nvidia+"0000:04:00.0/information", "hostile\x00")
	write(amd+"0/properties", "cpu_cores_count 16\ngfx_target_version 0\n")
	write(amd+"1/properties", "gfx_target_version 110000\nvendor_id 4098\n")
	const drm = "sys/class/drm/"
	write(drm+"card0/device/uevent", "DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:56A0\nPCI_SUBSYS_ID=172F:3937\n")
	write(drm+"card0-HDMI-A-1/device/uevent", "MAJOR=226\nDEVNAME=dri/card0\n")
	write(drm+"card1/device/uevent", "PCI_ID=1002:744C\n")
	none := func() ([]string, error) { return nil, errors.New("there is no nvidia-smi") }
	wsl := func() ([]string, error) { return []string{"NVIDIA RTX A2000", "NVIDIA RTX A2000"}, nil }
	cuda := []string{"/x/libggml-base.so", "/x/cuda_v12/libggml-cuda.so"}
	static := []string{"/usr/lib/wsl/lib/libcuda.so.1"}
	withDXG := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(withDXG, "dev"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(withDXG, "dev", "dxg"), nil, 0o600))
	for _, test := range []struct {
		root      string
		libraries []string
		smi       func() ([]string, error)
		want      []string
	}{
		{root, cuda, none, []string{"cuda NVIDIA GeForce GTX 1070", "cuda Quadro M6000 24GB"}},
		{root, static, none, []string{"cuda NVIDIA GeForce GTX 1070", "cuda Quadro M6000 24GB"}},
		{root, []string{"/x/rocm/libggml-hip.so.0"}, none, []string{"hip 110000"}},
		{root, []string{"/x/vulkan/libggml-vulkan.so"}, none, []string{"vulkan 1002:744C", "vulkan 8086:56A0"}},
		{root, []string{"/usr/lib/libvulkan.so.1"}, none, []string{"vulkan 1002:744C", "vulkan 8086:56A0"}},
		{root, []string{"/x/libggml-sycl.so"}, none, []string{"sycl 1002:744C", "sycl 8086:56A0"}},
		{root, []string{"/x/libggml-cpu-haswell.so", "/cuda/libggml-blas.so"}, none, nil},
		{t.TempDir(), cuda, none, nil}, // without a driver there is no card
		{withDXG, static, wsl, []string{"cuda NVIDIA RTX A2000"}},
	} {
		kinds, err := devices(test.root, test.libraries, test.smi)
		require.NoError(t, err)
		require.Equal(t, test.want, kinds, "%+v", test)
	}
	for _, library := range []string{static[0], "/usr/lib/libvulkan.so.1", "/x/libggml-hip.so", "/usr/lib/libze_loader.so.1"} {
		_, err := devices(withDXG, []string{library}, none)
		require.ErrorIs(t, err, errKind, library)
	}
	require.Equal(t, []string{"NVIDIA RTX A2000", "Quadro M6000 24GB"}, smiNames([]byte("GPU 0: NVIDIA RTX A2000 (UUID: GPU-1)\nGPU 1: Quadro M6000 24GB (UUID: GPU-2)\n")))
	require.Empty(t, smiNames([]byte("No devices were found\n")))

	root = t.TempDir()
	write("proc/device-tree/model", "NVIDIA Jetson Orin Nano Developer Kit\x00")
	kinds, err := devices(root, static, none)
	require.NoError(t, err)
	require.Equal(t, []string{"cuda NVIDIA Jetson Orin Nano Developer Kit"}, kinds)
	write("proc/device-tree/model", "Raspberry Pi 5 Model B\x00")
	kinds, err = devices(root, static, none)
	require.NoError(t, err)
	require.Empty(t, kinds)
}

// TestTheEnginesCode is that of the program which runs.
func TestTheEnginesCode(t *testing.T) {
	files := digests.Open(filepath.Join(t.TempDir(), "digests.json"))
	one, _, err := engineDigest(os.Getpid(), files)
	if err != nil {
		t.Skip("no /proc on this system")
	}
	two, _, err := engineDigest(os.Getpid(), files)
	require.NoError(t, err)
	require.Equal(t, one, two)
	_, _, err = engineDigest(-1, files)
	require.Error(t, err)
}

// TestOnCPU: the split of layers is left out only where it is known that the CPU computes all.
func TestOnCPU(t *testing.T) {
	cpu := []string{"/x/libggml-base.so.0", "/x/libggml-blas.so", "/x/libggml-cpu-haswell.so", "/x/libggml.so", "/x/libllama.so"}
	require.True(t, onCPU(cpu))
	require.True(t, onCPU([]string{"/x/libggml-cpu.so.0"}))
	for _, device := range []string{"cuda", "hip", "vulkan", "metal", "rpc", "cpux"} {
		require.False(t, onCPU(append(slices.Clip(cpu), "/x/"+device+"/libggml-"+device+".so")), device)
	}
	require.False(t, onCPU([]string{"/lib/libc.so.6"}), "ggml is part of the program")
}
