//go:build !linux

package measure

import "errors"

// fillIn adds nothing: no measurement was made on other systems yet.
func (m *Machine) fillIn(string) {}

// Forget works on Linux only.
func Forget([]string) error {
	return errors.New("taking files out of the page cache: only done on Linux")
}

// DropCaches works on Linux only.
func DropCaches() error { return errors.New("emptying the page cache: only done on Linux") }

// ForgetFile returns false: only Linux can take a file out of the page cache.
func ForgetFile(string) (bool, error) { return false, nil }
