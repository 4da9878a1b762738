//go:build !linux

package slotfile

import (
	"errors"
	"os"
)

// newMemory returns errors.ErrUnsupported: no other system has files in memory with a path.
func newMemory() (*os.File, string, error) { return nil, "", errors.ErrUnsupported }

func opens(string) (opened <-chan struct{}, stop func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}

type mount struct{ ended chan struct{} }

// newMount returns errors.ErrUnsupported: streams are known on Linux only.
func newMount(*Folder) (*mount, error) { return nil, errors.ErrUnsupported }

func (m *mount) close() {}

func (m *mount) opened() uint64 { return 0 }

func (m *mount) add(string, Stream) string { return "" }

func (m *mount) remove(string) {}

func detach(string) error { return nil }
