package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// vendor is a way to compute on a GPU: the libraries of ggml and of drivers that an engine maps
// for it, the files of the system that tell the kinds of GPUs, and the devices by which a driver reaches
// one whose kind they may not tell.
type vendor struct {
	name      string
	libraries *regexp.Regexp
	files     []string
	kind      *regexp.Regexp
	cards     []string
}

// dxg is the device by which WSL2 reaches GPUs of all vendors.
const dxg = "dev/dxg"

var vendors = []vendor{
	{"cuda", regexp.MustCompile(`^lib(ggml-cuda|cuda\.so)`),
		[]string{"proc/driver/nvidia/gpus/*/information", "proc/device-tree/model"},
		regexp.MustCompile(`(?m)^Model:\s*(.+?)\s*$|^(NVIDIA [^\x00\n]+)\x00?$`), []string{dxg, "dev/nvidia[0-9]*"}},
	{"hip", regexp.MustCompile(`^lib(ggml-hip|amdhip64)`),
		[]string{"sys/class/kfd/kfd/topology/nodes/*/properties"}, regexp.MustCompile(`(?m)^gfx_target_version ([1-9][0-9]*)$`), []string{dxg}},
	{"vulkan", regexp.MustCompile(`^lib(ggml-vulkan|vulkan\.so)`),
		[]string{"sys/class/drm/card*/device/uevent"}, regexp.MustCompile(`(?m)^PCI_ID=([0-9A-Fa-f]{4}:[0-9A-Fa-f]{4})$`), []string{dxg}},
	{"sycl", regexp.MustCompile(`^lib(ggml-sycl|ze_loader\.so)`),
		[]string{"sys/class/drm/card*/device/uevent"}, regexp.MustCompile(`(?m)^PCI_ID=([0-9A-Fa-f]{4}:[0-9A-Fa-f]{4})$`), []string{dxg}},
}

// errKind reports a card whose kind nobody tells.
var errKind = errors.New("which kind of GPU computes is not known, and another kind rounds differently")

// devices returns the kinds of the GPUs of this machine whose libraries an engine has mapped, its own
// or those of a driver: another kind rounds differently. root is the root of the system's files.
// Kinds are known on Linux: those of NVIDIA's and AMD's own libraries by their names, others by their
// PCI numbers. smi lists NVIDIA's cards where the system has no files of them, as under WSL2, which tells
// nothing of others. An engine that is told to use some of them counts as one that uses all.
func devices(root string, libraries []string, smi func() ([]string, error)) ([]string, error) {
	mapped := func(name *regexp.Regexp) bool {
		return slices.ContainsFunc(libraries, func(path string) bool { return name.MatchString(filepath.Base(path)) })
	}
	var kinds []string
	for _, vendor := range vendors {
		if !mapped(vendor.libraries) {
			continue
		}
		found := kindsIn(root, vendor.files, vendor.kind)
		if len(found) == 0 && there(root, vendor.cards) {
			if vendor.name != "cuda" {
				return nil, fmt.Errorf("%w: WSL2 does not tell it for %s", errKind, vendor.name)
			}
			var err error
			if found, err = smi(); err != nil || len(found) == 0 {
				return nil, errors.Join(fmt.Errorf("%w: /proc/driver/nvidia does not tell it, and nvidia-smi neither; "+
					"install nvidia-smi, or mount /usr/lib/wsl/lib into the container", errKind), err)
			}
		}
		for _, kind := range found {
			kinds = append(kinds, vendor.name+" "+kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}

// there reports whether a file exists whose path matches one of some patterns.
func there(root string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is a constant
		return len(paths) > 0
	})
}

// kindsIn reads the kinds of GPUs in files. One that cannot be read counts as unknown, like the GPUs
// of other vendors.
func kindsIn(root string, files []string, kind *regexp.Regexp) (kinds []string) {
	for _, pattern := range files {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is a constant
		for _, path := range paths {
			text, _ := os.ReadFile(path)
			if m := kind.FindSubmatch(text); m != nil {
				kinds = append(kinds, string(slices.Concat(m[1:]...)))
			}
		}
	}
	return kinds
}

// smiTimeout bounds the time of nvidia-smi, which wakes a card that sleeps.
const smiTimeout = 10 * time.Second

// smiLine is a line of nvidia-smi -L.
var smiLine = regexp.MustCompile(`(?m)^GPU \d+: (.+?) \(UUID: `)

// nvidiaSMI lists the names of NVIDIA's cards.
func nvidiaSMI() ([]string, error) {
	var failed error
	for _, program := range []string{"nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"} { // the latter is on no PATH of a service
		ctx, cancel := context.WithTimeout(context.Background(), smiTimeout)
		cmd := exec.CommandContext(ctx, program, "-L")
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		cancel()
		if names := smiNames(out); err == nil && len(names) > 0 {
			return names, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// smiNames reads what nvidia-smi -L prints.
func smiNames(out []byte) (names []string) {
	for _, m := range smiLine.FindAllSubmatch(out, -1) {
		names = append(names, string(m[1]))
	}
	return names
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
