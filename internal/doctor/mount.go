package doctor

import (
	"path"
	"slices"
	"strings"
)

// mount is a line of a mountinfo file.
type mount struct {
	point, fsType, source string
	options               []string
	file                  string // that says so, of a place that should be mounted
}

func (m mount) has(option string) bool { return slices.Contains(m.options, option) }

func (m mount) nfs() bool { return m.fsType == "nfs" || m.fsType == "nfs4" }

// parseMounts reads a mountinfo file.
func parseMounts(text string) []mount {
	var all []mount
	for line := range strings.Lines(text) {
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(types) < 3 {
			continue
		}
		all = append(all, mount{
			point: unescapeMount.Replace(fields[4]), fsType: types[0], source: unescapeMount.Replace(types[1]),
			options: strings.Split(fields[5]+","+types[2], ","),
		})
	}
	return all
}

// unescapeMount undoes the kernel's escapes.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// within reports whether a path is a directory or below it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// mountOf returns the mount that a path is on: the last one with the longest point.
func mountOf(mounts []mount, name string) (m mount, ok bool) {
	for _, next := range mounts {
		if within(name, next.point) && len(next.point) >= len(m.point) {
			m, ok = next, true
		}
	}
	return m, ok
}

// parseTable returns the places that a file such as /etc/fstab mounts, those for hands left out.
func parseTable(text string) []mount {
	var all []mount
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") || fields[2] == "swap" {
			continue
		}
		all = append(all, mount{
			source: unescapeMount.Replace(fields[0]), point: path.Clean(unescapeMount.Replace(fields[1])),
			fsType: fields[2], options: strings.Split(fields[3], ","), file: "/etc/fstab",
		})
	}
	return all
}

// rule is a line of systemd-tmpfiles that removes files.
type rule struct{ file, kind, path, age string }

// parseRules returns the lines that remove files below a path: by age, or when the system boots. Lines
// that exclude a path have the kind x.
func parseRules(file, text string) []rule {
	var all []rule
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		r := rule{file: file, kind: strings.TrimRight(fields[0], "!+-=~^$"), path: path.Clean(strings.Trim(fields[1], `"`))}
		if len(fields) > 5 && fields[5] != "-" && fields[5] != "" {
			r.age = fields[5]
		}
		aged := slices.Contains([]string{"d", "D", "e", "v", "q", "Q", "C"}, r.kind) && r.age != ""
		switch {
		case aged, r.kind == "D", r.kind == "R":
			all = append(all, r)
		case strings.EqualFold(r.kind, "x"):
			r.kind = "x"
			all = append(all, r)
		}
	}
	return all
}
