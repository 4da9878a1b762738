// Package pager is ggml-paged for Go: K/V of any length in fixed memory, and the attention op over it.
//
// The package is a leaf: it imports nothing of Ollama and nothing else of this module, so that Ollama's
// kvcache can use it. cgo compiles the C++ library in the folders beside this one through the generated
// *_linux.cpp files. The promises of each function are in ../include/kv_pager.h and
// ../include/paged_attn.h; comments here give the differences alone.
//
// [Pager], [Batch] and ops are the library's. A [Group] is bookkeeping for a cache, in Go alone: which
// pages of its layers have rows, which of them are in files, and how many have room.
//
// The pager needs Linux (unnamed files, O_DIRECT) and cgo. Elsewhere New returns ErrUnsupported.
package pager

//go:generate go run ./gen
