//go:build !linux && !darwin

package identity

import (
	"errors"
	"os"
)

// code is known on Linux and macOS only.
func code(int) (exe string, libraries []string, err error) { return "", nil, errors.ErrUnsupported }

func openProgram(int, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func machine() []string { return nil }

// drivers are not known: see machine.
func drivers(int) []string { return nil }
