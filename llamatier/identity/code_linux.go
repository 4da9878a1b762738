package identity

import (
	"fmt"
	"os"
	"path/filepath"
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
	p.libraries, err = digests.Mapped(string(maps), []string{filepath.Dir(p.name)})
	return p, err
}
