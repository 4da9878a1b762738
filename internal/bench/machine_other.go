//go:build !linux

package main

import "errors"

// fillIn adds nothing: no measurement was made on other systems yet.
func (m *Machine) fillIn(string) {}

// forget works on Linux only.
func forget([]string) error {
	return errors.New("taking files out of the page cache: only done on Linux")
}

// dropCaches works on Linux only.
func dropCaches() error { return errors.New("emptying the page cache: only done on Linux") }
