//go:build !linux || !cgo

package elastic

import "unsafe"

// A Pool cannot be made on this system: New always fails.
type Pool struct{}

// A Buffer cannot be made on this system.
type Buffer struct{}

func New(uint64, int, Options) (*Pool, error) { return nil, ErrUnsupported }
func Reap(string) (int, error)                { return 0, ErrUnsupported }

func (*Pool) Device() int                             { return Host }
func (*Pool) Close() error                            { return ErrUnsupported }
func (*Pool) Resize(uint64) error                     { return ErrUnsupported }
func (*Pool) Stats() (Stats, error)                   { return Stats{}, ErrUnsupported }
func (*Pool) Memory() (free, total uint64, err error) { return 0, 0, ErrUnsupported }
func (*Pool) Attach(string) error                     { return ErrUnsupported }
func (*Pool) Poll() error                             { return ErrUnsupported }
func (*Pool) Tell(uint64, uint64, uint64) error       { return ErrUnsupported }
func (*Pool) Alloc(uint64) (*Buffer, error)           { return nil, ErrUnsupported }

func (*Buffer) Base() unsafe.Pointer                   { return nil }
func (*Buffer) Size() uint64                           { return 0 }
func (*Buffer) Pool() *Pool                            { return nil }
func (*Buffer) Commit(uint64, uint64) error            { return ErrUnsupported }
func (*Buffer) Uncommit(uint64, uint64) error          { return ErrUnsupported }
func (*Buffer) Committed(uint64, uint64) (bool, error) { return false, ErrUnsupported }
func (*Buffer) Disturbs(uint64, uint64) (bool, error)  { return false, ErrUnsupported }
func (*Buffer) Free() error                            { return ErrUnsupported }
