// Package pager is ggml-paged for Go: K/V of any length in a fixed amount of memory, and
// the attention op over it.
//
// It is a leaf: it imports nothing of Ollama and nothing else of this module, so that
// Ollama's kvcache can use it. The C++ library in the folders beside this one is compiled
// by cgo through the generated *_linux.cpp files; what each function promises is written
// in ../include/kv_pager.h and ../include/paged_attn.h, and only what differs is said
// here.
//
// The pager needs Linux (unnamed files, O_DIRECT) and cgo. Elsewhere New returns
// ErrUnsupported.
package pager

//go:generate go run ./gen
