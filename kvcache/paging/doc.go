// Package paging reads the OLLAMA_PAGED_* settings and makes a runner's pager from them.
//
// Settings that cannot work are refused with an error that names them: users ask for paged
// attention where a context would not fit otherwise, and a model loaded without paged
// attention would fail later and less clearly. The package imports nothing of Ollama.
package paging
