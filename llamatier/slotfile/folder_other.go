//go:build !unix

package slotfile

import (
	"errors"
	"os"
)

func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func removeDead(string) error { return errors.ErrUnsupported }
