//go:build !linux

package main

import "errors"

// fillIn has nothing to add on systems that nothing was measured on yet.
func (m *Machine) fillIn(string) {}

// forget is known for Linux only.
func forget([]string) error {
	return errors.New("taking files out of the page cache: only done on Linux")
}

// dropCaches is known for Linux only.
func dropCaches() error { return errors.New("emptying the page cache: only done on Linux") }
