//go:build !linux

package memory

import "errors"

// Available returns errors.ErrUnsupported.
func Available() (uint64, error) { return 0, errors.ErrUnsupported }
