//go:build unix && !linux && !darwin

package vfs

import "errors"

func space(string) (Space, error) {
	return Space{}, errors.ErrUnsupported
}
