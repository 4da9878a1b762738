package machine

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
)

// System answers questions about a machine. Methods may hang, and Run ends soon after its context.
// Methods are called from several goroutines.
type System interface {
	OS() string // as runtime.GOOS

	// User runs this program, which has some variables.
	User() Account
	Variables() map[string]string

	// Account returns a user by name or by number.
	Account(user string) (Account, bool)

	// Find returns the path of a program that a shell would run. Run runs a program with some
	// variables more, and returns its output.
	Find(program string) (string, error)
	Run(ctx context.Context, variables []string, program string, args ...string) (string, error)

	// Read returns the beginning of a regular file, at most so many bytes. List returns names
	// in a directory, at most so many, in order. Both refuse a link.
	Read(path string, most int) ([]byte, error)
	List(path string, most int) ([]string, error)

	// Stat describes a path: a link itself. Resolve returns a path without links.
	Stat(path string) (File, error)
	Resolve(path string) (string, error)

	// Disk describes the filesystem that a path is on.
	Disk(path string) (Disk, error)

	// Patched reports whether a program of Go contains kvtier.
	Patched(executable string) bool
}

// Account is a user.
type Account struct {
	UID        int // -1 where users have no numbers
	Name, Home string
}

// File describes a file.
type File struct {
	Mode fs.FileMode
	UID  int   // -1 where files have no owner
	Size int64 // bytes
}

// Disk describes a filesystem. Sizes are in bytes.
type Disk struct {
	Total, Free int64
	RAM         bool // in memory
}

// Bounds of lists and texts.
const (
	processesMax = 1 << 16
	ServersMax   = 16
	EntriesMax   = 1024    // of a directory
	TextMax      = 1 << 20 // bytes of a file of text
)

// ReadLinked reads a file that a link may lead to, such as one of the system's.
func ReadLinked(s System, path string, most int) ([]byte, error) {
	if real, err := s.Resolve(path); err == nil {
		path = real
	}
	return s.Read(path, most)
}

// Trusted reports whether only a user and root can change a file, or put another one in its place. Such a file may
// be run by that user, by the path without links that Trusted returns.
func Trusted(s System, uid int, path string) (resolved string, ok bool) {
	resolved, err := s.Resolve(path)
	if err != nil {
		return "", false
	}
	for p := resolved; ; p = filepath.Dir(p) {
		f, err := s.Stat(p)
		if err != nil || f.Mode&0o022 != 0 && f.Mode&fs.ModeSticky == 0 || f.UID > 0 && f.UID != uid {
			return "", false
		}
		if p == filepath.Dir(p) {
			return resolved, true
		}
	}
}

// Within reports whether a path is a directory or below it.
func Within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// variablesIn reads NAME=value texts. The first one of a name counts, as for getenv.
func variablesIn(texts []string) map[string]string {
	set := make(map[string]string)
	for _, one := range texts {
		if name, v, ok := strings.Cut(one, "="); ok && name != "" {
			if _, there := set[name]; !there {
				set[name] = v
			}
		}
	}
	return set
}

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
