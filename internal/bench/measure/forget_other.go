//go:build !linux

package measure

// ForgetFile returns false: only Linux can take a file out of the page cache.
func ForgetFile(string) (bool, error) { return false, nil }
