package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/digests"
)

// code finds the program of a process. The system's libraries are among those that it has mapped.
func code(pid int) (p program, err error) {
	p.file = fmt.Sprintf("/proc/%d/exe", pid)
	if p.name, err = os.Readlink(p.file); err != nil {
		return p, err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return p, err
	}
	for _, line := range strings.Split(string(maps), "\n") {
		_, path, _ := strings.Cut(line, "/")
		if slices.ContainsFunc(vendors, func(v vendor) bool { return v.libraries.MatchString(filepath.Base(path)) }) {
			p.drivers = append(p.drivers, "/"+path)
		}
	}
	if p.libraries, err = digests.Mapped(string(maps), []string{filepath.Dir(p.name)}); err != nil {
		return p, err
	}
	if runtime.GOARCH == "arm64" || slices.ContainsFunc(p.libraries, byProcessor.MatchString) {
		text, err := os.ReadFile("/proc/cpuinfo")
		if err != nil {
			return p, err
		}
		p.system = processors(string(text))
	}
	return p, nil
}

// byProcessor matches the paths of libraries whose code for matrix products is chosen by the processor. On ARM the
// processor has the length of vectors, and with it the order of sums, in any library. Elsewhere ggml has a library
// for each kind of processor.
var byProcessor = regexp.MustCompile(`(?i)ggml-blas|openblas|blis|libmkl`)

// processorLine is a line of /proc/cpuinfo that tells the kind of a processor.
var processorLine = regexp.MustCompile(`(?m)^(?:vendor_id|cpu family|model|model name|CPU implementer|CPU part)\s*:.*$`)

// processors are the kinds of processors in the text of /proc/cpuinfo.
func processors(cpuinfo string) []string {
	kinds := processorLine.FindAllString(cpuinfo, -1)
	for i, kind := range kinds {
		kinds[i] = strings.Join(strings.Fields(kind), " ")
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
