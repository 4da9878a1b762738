//go:build !linux

package collect

// withSocket calls use with a path of the socket that is short enough.
func withSocket(dir string, use func(path string) error) error { return withShortPath(dir, use) }
