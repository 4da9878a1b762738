package doctor

import (
	"bytes"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mountTables are the answers about mounts.
type mountTables struct {
	mounts, table []mount
	rules         []rule
}

// mountTablesOf reads the mounts, /etc/fstab and the rules by which files are removed.
func mountTablesOf(e Environment) (t mountTables) {
	if e.OS() != "linux" {
		return t
	}
	text, _ := e.Read("/proc/self/mountinfo", textMax)
	t.mounts = parseMounts(string(text))
	text, _ = readLinked(e, "/etc/fstab", textMax)
	t.table = append(parseTable(string(text)), mountUnits(e)...)
	seen := make(map[string]bool) // a file of an earlier folder stands in place of a later one
	for _, dir := range []string{"/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"} {
		names, _ := e.List(dir, entriesMax)
		for _, name := range names {
			if !strings.HasSuffix(name, ".conf") || seen[name] {
				continue
			}
			seen[name] = true
			text, _ := readLinked(e, path.Join(dir, name), textMax)
			t.rules = append(t.rules, parseRules(path.Join(dir, name), string(text))...)
		}
	}
	return t
}

// mountUnits returns the places that an administrator's mount units of systemd mount.
func mountUnits(e Environment) (all []mount) {
	const dir = "/etc/systemd/system"
	names, _ := e.List(dir, entriesMax)
	for _, name := range names {
		if !strings.HasSuffix(name, ".mount") {
			continue
		}
		text, _ := readLinked(e, path.Join(dir, name), textMax)
		m := mount{file: path.Join(dir, name)}
		for line := range strings.Lines(string(text)) {
			key, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch strings.TrimSpace(key) {
			case "Where":
				m.point = path.Clean(strings.TrimSpace(v))
			case "What":
				m.source = strings.TrimSpace(v)
			}
		}
		if m.point != "" {
			all = append(all, m)
		}
	}
	return all
}

// installations lists the installations of Ollama with their builds and libraries.
func installations(ctx context.Context, e Environment) []installed {
	all, _ := e.Installed(ctx)
	var list []installed
	for _, s := range all[:min(len(all), serversMax)] {
		i := installed{Status: s}
		i.build, _ = e.Build(s.Executable)
		dir := s.Folder
		if dir == "" {
			dir = filepath.Join(filepath.Dir(filepath.Dir(s.Executable)), "lib", "ollama")
		}
		if i.build.Patched {
			i.baseOps = opsOfBase(e, dir)
		}
		list = append(list, i)
	}
	return list
}

const (
	baseLibrary = "libggml-base.so"
	libraryMax  = 64 << 20 // bytes
)

// opsOfBase lists the operations that the library of ggml's core names.
func opsOfBase(e Environment, dir string) []string {
	file, err := e.Resolve(filepath.Join(dir, baseLibrary))
	if err != nil {
		return nil
	}
	text, err := e.Read(file, libraryMax)
	if err != nil {
		return nil
	}
	var all []string
	for name := range opNames(text) {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// opNames finds the names of ggml's operations in a program or library: texts in capitals
// between bytes of zero. Names of ggml's variables are left out.
func opNames(data []byte) map[string]bool {
	found := make(map[string]bool)
	for len(data) > 0 {
		at := bytes.IndexByte(data, 0)
		if at < 0 {
			break
		}
		if word := data[:at]; isOpName(word) {
			found[string(word)] = true
		}
		data = data[at+1:]
	}
	return found
}

func isOpName(word []byte) bool {
	const least, most = 4, 31
	if len(word) < least || len(word) > most || bytes.HasPrefix(word, []byte("GGML_")) {
		return false
	}
	for i, b := range word {
		capital := b >= 'A' && b <= 'Z'
		if !capital && (i == 0 || b != '_' && (b < '0' || b > '9')) {
			return false
		}
	}
	return true
}

// pagedOp is the operation that the patches add; libraries of the stock release lack it.
const pagedOp = "FLASH_ATTN_EXT_PAGED"

// surelyOps are operations of some releases only, with names that nothing else has: a program
// that has one and whose libraries lack it is of a later release.
var surelyOps = []string{"GATED_DELTA_NET", "SOLVE_TRI", "PAD_REFLECT_1D", "COUNT_EQUAL", "OPT_STEP_SGD", "IM2COL_3D", "SWIGLU_OAI", "L2_NORM"}
