//go:build !linux || !cgo

package pager

import "unsafe"

// A Pager cannot be made on this system: New always fails.
type Pager struct{}

// A Batch cannot be made on this system.
type Batch struct{}

// Here returns ErrUnsupported on a system without a pager.
func Here() error { return ErrUnsupported }

func New(Config) (*Pager, error) { return nil, ErrUnsupported }

// TrimHeap does nothing where there is no pager.
func TrimHeap() {}

func Supported(Layer, int) error { return ErrUnsupported }

func (*Pager) Close()                                       {}
func (*Pager) Closed() bool                                 { return true }
func (*Pager) AddLayer(Layer) (int, error)                  { return 0, ErrUnsupported }
func (*Pager) Start() error                                 { return ErrUnsupported }
func (*Pager) Started() bool                                { return false }
func (*Pager) PageCells() int                               { return 1 }
func (*Pager) PageBytes(int) uint64                         { return 0 }
func (*Pager) RowBytes(int) (int, int)                      { return 0, 0 }
func (*Pager) Reserve(int, int) error                       { return ErrUnsupported }
func (*Pager) Drop(int, int)                                {}
func (*Pager) ReadRows(int, []int32, []byte, []byte) error  { return ErrUnsupported }
func (*Pager) WriteRows(int, []int32, []byte, []byte) error { return ErrUnsupported }
func (*Pager) Rotate(int, int, []uint64, []Plane) error     { return ErrUnsupported }
func (*Pager) Back(int, int, []Section) error               { return ErrUnsupported }
func (*Pager) Err() error                                   { return ErrUnsupported }
func (*Pager) Fail(error)                                   {}
func (*Pager) BoundsBytes(int) uint64                       { return 0 }
func (*Pager) Stats() Stats                                 { return Stats{} }
func (*Pager) Held(_ int, bytes []uint64)                   { clear(bytes) }
func (*Pager) Begin(BatchDesc) (*Batch, error)              { return nil, ErrUnsupported }
func (*Batch) Except([]bool) (*Batch, error)                { return nil, ErrUnsupported }
func (*Batch) Op(Params) (unsafe.Pointer, error)            { return nil, ErrUnsupported }
