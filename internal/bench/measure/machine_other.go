//go:build !linux

package measure

import "errors"

// fillIn adds nothing: no measurement was made on other systems yet.
func (m *Machine) fillIn(string) {}

// DropCaches works on Linux only.
func DropCaches() error { return errors.New("emptying the page cache: only done on Linux") }
