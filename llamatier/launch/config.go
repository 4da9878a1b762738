package launch

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// llama-server also reads options from files that nobody names. They count where neither a
// variable nor an argument sets an option.

// configured returns the path of such a file with options, "" if there is none.
func (c Command) configured() string {
	for _, path := range c.configFiles() {
		text, err := os.ReadFile(path)
		if err == nil && hasOptions(string(text)) {
			return path
		}
	}
	return ""
}

// configFiles returns the paths of the files, in llama.cpp's common/arg.cpp.
func (c Command) configFiles() []string {
	set := make(map[string]string)
	for _, v := range c.Environ {
		name, value, _ := strings.Cut(v, "=")
		set[name] = value
	}
	own := set["XDG_CONFIG_HOME"]
	if own == "" {
		own = filepath.Join(home(set["HOME"]), ".config")
	}
	return []string{"/etc/llama.cpp/config.ini", filepath.Join(own, "llama.cpp", "config.ini")}
}

// home is the home directory: the one that a variable names, or else the user's.
func home(variable string) string {
	if variable != "" {
		return variable
	}
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return ""
	}
	return u.HomeDir
}

// hasOptions reports whether the text of a file has a line other than comments and the names of
// sections.
func hasOptions(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.ContainsRune(";#[", rune(line[0])) {
			return true
		}
	}
	return false
}
