package machine

import "path/filepath"

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
