// Package elastic holds only the KV memory in use: addresses are reserved for everything,
// memory is committed as tokens arrive, and given back when they leave.
//
// A [Pool] stands for one CUDA device, or for host memory, and has a limit that may change while it is
// used: by [Pool.Resize], or by tools of kvcached and of kvtier through a segment in shared memory
// ([Pool.Attach], [Pool.Poll]). [Pools] are those of a process. A [Buffer] is a range of addresses,
// divided into granules, each of which has memory of its own (committed) or not.
//
// The package imports nothing of Ollama, and of this module internal/memory alone, so that Ollama's
// kvcache can use it. cgo compiles the C++ library in the folders beside this file through the
// generated *_linux.cpp files. The promises of each function, among them the caller's duties towards
// kernels that run, are in include/kvc.h; comments here give the differences alone.
//
// The package needs Linux and cgo. Elsewhere New returns ErrUnsupported.
package elastic

//go:generate go run ./gen
