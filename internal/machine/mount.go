package machine

import (
	"path"
	"slices"
	"strings"
)

// Mount is a mounted filesystem, or one that should be mounted.
type Mount struct {
	Point, Type, Source string
	Options             []string
	File                string // that asks for the mount
}

// Filesystems are the mounts of a machine, and the rules by which the system empties directories.
type Filesystems struct {
	Mounted  []Mount // that this program sees
	Planned  []Mount // by /etc/fstab, and by an administrator's mount units of systemd
	Removals []Removal
}

// FilesystemsOf looks at the mounts of a machine.
func FilesystemsOf(s System) Filesystems {
	if s.OS() != "linux" {
		return Filesystems{}
	}
	return Filesystems{Mounts(s, "/proc/self"), planned(s), removals(s)}
}

// Mounts are those that a process sees, by its folder such as /proc/self.
func Mounts(s System, process string) []Mount {
	text, _ := s.Read(process+"/mountinfo", TextMax)
	return parseMounts(string(text))
}

// parseMounts reads a mountinfo file.
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

func planned(s System) []Mount {
	text, _ := ReadLinked(s, "/etc/fstab", TextMax)
	all := parseTable(string(text))
	linesOf(s, "/etc/systemd/system", ".mount", func(file, text string) {
		m := Mount{File: file}
		for line := range strings.Lines(text) {
			key, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch strings.TrimSpace(key) {
			case "Where":
				m.Point = path.Clean(strings.TrimSpace(v))
			case "What":
				m.Source = strings.TrimSpace(v)
			}
		}
		if m.Point != "" {
			all = append(all, m)
		}
	})
	return all
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
			Type: fields[2], Options: strings.Split(fields[3], ","), File: "/etc/fstab",
		})
	}
	return all
}

// Removal is a line of systemd-tmpfiles that removes files.
type Removal struct{ File, Kind, Path, Age string }

func removals(s System) (all []Removal) {
	seen := make(map[string]bool) // a file of an earlier folder stands in place of a later one
	for _, dir := range []string{"/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"} {
		linesOf(s, dir, ".conf", func(file, text string) {
			if name := path.Base(file); !seen[name] {
				seen[name] = true
				all = append(all, parseRemovals(file, text)...)
			}
		})
	}
	return all
}

// parseRemovals returns the lines that remove files below a path: by age, or when the system boots. Lines
// that exclude a path have the kind x.
func parseRemovals(file, text string) []Removal {
	var all []Removal
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		r := Removal{File: file, Kind: strings.TrimRight(fields[0], "!+-=~^$"), Path: path.Clean(strings.Trim(fields[1], `"`))}
		if len(fields) > 5 && fields[5] != "-" && fields[5] != "" {
			r.Age = fields[5]
		}
		aged := slices.Contains([]string{"d", "D", "e", "v", "q", "Q", "C"}, r.Kind) && r.Age != ""
		switch {
		case aged, r.Kind == "D", r.Kind == "R":
			all = append(all, r)
		case strings.EqualFold(r.Kind, "x"):
			r.Kind = "x"
			all = append(all, r)
		}
	}
	return all
}
