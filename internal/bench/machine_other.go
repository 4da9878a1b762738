//go:build !linux

package main

import "errors"

// fillIn has nothing to add on systems that nothing was measured on yet.
func (m *Machine) fillIn(string) {}

// dropCaches is known for Linux only.
func dropCaches() error { return errors.New("emptying the page cache: only done on Linux") }
