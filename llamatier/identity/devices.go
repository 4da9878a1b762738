package identity

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Lines of the files that describe GPUs.
var (
	nvidiaModel = regexp.MustCompile(`(?m)^Model:\s*(.+?)\s*$`)
	amdTarget   = regexp.MustCompile(`(?m)^gfx_target_version ([1-9][0-9]*)$`)
	pciKind     = regexp.MustCompile(`(?m)^PCI_ID=([0-9A-Fa-f]{4}:[0-9A-Fa-f]{4})$`)
)

// devices returns the kinds of the GPUs of this machine whose library an engine has mapped:
// another kind rounds differently. root is the root of the system's files. Kinds are known on
// Linux: those of NVIDIA's and AMD's own libraries by their names, others by their PCI numbers.
// An engine that is told to use some of them counts as one that uses all.
func devices(root string, libraries []string) []string {
	var kinds []string
	for _, vendor := range []struct {
		library, files string
		kind           *regexp.Regexp
	}{
		{"cuda", "proc/driver/nvidia/gpus/*/information", nvidiaModel},
		{"hip", "sys/class/kfd/kfd/topology/nodes/*/properties", amdTarget},
		{"vulkan", "sys/class/drm/card*/device/uevent", pciKind},
		{"sycl", "sys/class/drm/card*/device/uevent", pciKind},
	} {
		mapped := func(path string) bool { return strings.HasPrefix(filepath.Base(path), "libggml-"+vendor.library) }
		if !slices.ContainsFunc(libraries, mapped) {
			continue
		}
		paths, _ := filepath.Glob(filepath.Join(root, vendor.files)) // the pattern is a constant
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				continue // it counts as unknown, like the GPUs of other vendors
			}
			if m := vendor.kind.FindSubmatch(text); m != nil {
				kinds = append(kinds, vendor.library+" "+string(m[1]))
			}
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// cpuLibrary matches the names of ggml's libraries with which the CPU computes.
var cpuLibrary = regexp.MustCompile(`^libggml-(base|cpu|blas)\b`)

// onCPU reports whether nothing besides the CPU can compute layers. It is not known for an engine
// whose libraries are part of its program.
func onCPU(libraries []string) bool {
	known := false
	for _, path := range libraries {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "libggml-") && !cpuLibrary.MatchString(name) {
			return false
		}
		known = known || strings.HasPrefix(name, "libggml-cpu")
	}
	return known
}
