package machine

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
)

// Names of a llama-server in Ollama's folder.
const (
	LlamaServer     = "llama-server"      // the file that Ollama runs
	RealLlamaServer = "llama-server-real" // the real one, where ours has its name
)

// Executable returns a program with symbolic links resolved, as Ollama resolves its own, "" if it cannot be run.
func Executable(s System, path string) string {
	path, err := s.Resolve(path)
	if err != nil {
		return ""
	}
	if f, err := s.Stat(path); err != nil || !f.Mode.IsRegular() || f.Mode&0o111 == 0 {
		return ""
	}
	return path
}

// libraries are the folders in which an Ollama looks for its libraries, in order.
func libraries(s System, executable string) []string {
	dir := filepath.Dir(executable)
	beside, above := filepath.Join(dir, "lib", "ollama"), filepath.Join(filepath.Dir(dir), "lib", "ollama")
	if s.OS() == "darwin" {
		return []string{beside, above, dir}
	}
	return []string{above, beside}
}

// ServerFolder returns the folder in which Ollama finds llama-server, "" if there is none. The order is
// that of v0.32, except where the first of the places is a folder without llama-server: v0.32 then
// looks no further on Linux, and into the executable's own folder before ../lib/ollama on macOS.
func ServerFolder(s System, executable string) string {
	for _, dir := range libraries(s, executable) {
		for _, name := range []string{LlamaServer, RealLlamaServer} {
			f, err := s.Stat(filepath.Join(dir, name))
			// systemd makes an empty file for a mount where Ollama has no llama-server.
			if err == nil && !(f.Mode.IsRegular() && f.Size == 0) {
				return dir
			}
		}
	}
	return ""
}

// BaseLibrary is the library with ggml's core.
const BaseLibrary = "libggml-base.so"

// BaseOps lists the operations that the library of ggml's core beside an Ollama names, none without one.
func BaseOps(s System, executable string) []string {
	const libraryMax = 64 << 20 // bytes
	for _, dir := range libraries(s, executable) {
		if text, err := ReadLinked(s, filepath.Join(dir, BaseLibrary), libraryMax); err == nil {
			return slices.Sorted(maps.Keys(opNames(text)))
		}
	}
	return nil
}

// surelyOps are operations of some releases only, with names that nothing else has: a program
// that has one and whose libraries lack it is of a later release.
var surelyOps = []string{"GATED_DELTA_NET", "SOLVE_TRI", "PAD_REFLECT_1D", "COUNT_EQUAL", "OPT_STEP_SGD", "IM2COL_3D", "SWIGLU_OAI", "L2_NORM"}

// OtherOps says which operations tell that a program and its library of ggml's core are of different releases.
func OtherOps(b Build, base []string) (differ []string) {
	if len(base) == 0 || len(b.Ops) == 0 {
		return nil
	}
	for _, op := range base {
		if !b.Ops[op] {
			differ = append(differ, op+" is in the library alone")
		}
	}
	for _, op := range surelyOps {
		if b.Ops[op] && !slices.Contains(base, op) {
			differ = append(differ, op+" is in the program alone")
		}
	}
	return differ
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
