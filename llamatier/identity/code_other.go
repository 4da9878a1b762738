//go:build !linux && !darwin

package identity

import "errors"

// code is known on Linux and macOS only.
func code(int) (program, error) { return program{}, errors.ErrUnsupported }
