//go:build unix

package front

import (
	"io"
	"os"
	"strings"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// keysMax bounds a file of keys, in bytes.
const keysMax = 1 << 20

// aKey returns a key with which the engine answers us, "" for none. Without the right one the
// engine refuses our first question, and nothing is stored.
func aKey(command launch.Command) string {
	key, file := command.Keys()
	if key != "" || file == "" {
		return key
	}
	read := begin(func() (string, error) { return keyIn(file) })
	if !read.within(diskTimeout) || read.err != nil {
		return ""
	}
	return read.value
}

// keyIn returns the first key in a file. A pipe is left to the engine, which reads it once.
func keyIn(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, keysMax))
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(b), "\n") {
		if line != "" && line[0] != '#' {
			return line, nil
		}
	}
	return "", nil
}
