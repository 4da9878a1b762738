package machine

import (
	"path"
	"strings"
)

// Mount is a mounted filesystem, or one that should be mounted.
type Mount struct {
	Point, Type, Source string
	Options             []string
}

// Filesystems are the mounts of a machine.
type Filesystems struct {
	Mounted []Mount // that this program sees
	Planned []Mount // by /etc/fstab
}

// FilesystemsOf looks at the mounts of a machine.
func FilesystemsOf(s System) Filesystems {
	if s.OS() != "linux" {
		return Filesystems{}
	}
	table, _ := ReadLinked(s, "/etc/fstab", TextMax)
	mounts, _ := s.Read("/proc/self/mountinfo", TextMax)
	return Filesystems{parseMounts(string(mounts)), parseTable(string(table))}
}

func parseMounts(text string) []Mount {
	var all []Mount
	for line := range strings.Lines(text) {
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(types) < 3 {
			continue
		}
		all = append(all, Mount{
			Point: unescapeMount.Replace(fields[4]), Type: types[0], Source: unescapeMount.Replace(types[1]),
			Options: strings.Split(fields[5]+","+types[2], ","),
		})
	}
	return all
}

// unescapeMount undoes the kernel's escapes.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// MountOf returns the mount that a path is on: the last one with the longest point.
func MountOf(mounts []Mount, name string) (m Mount, ok bool) {
	for _, next := range mounts {
		if Within(name, next.Point) && len(next.Point) >= len(m.Point) {
			m, ok = next, true
		}
	}
	return m, ok
}

// parseTable returns the places that a file such as /etc/fstab mounts.
func parseTable(text string) []Mount {
	var all []Mount
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") || fields[2] == "swap" {
			continue
		}
		all = append(all, Mount{
			Source: unescapeMount.Replace(fields[0]), Point: path.Clean(unescapeMount.Replace(fields[1])),
			Type: fields[2], Options: strings.Split(fields[3], ","),
		})
	}
	return all
}
