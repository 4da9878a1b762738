// Package paging reads the OLLAMA_PAGED_* settings and makes a runner's pager from them.
//
// Settings that cannot work are refused with a sentence that names them: people ask for
// paged attention where a context would not fit otherwise, and going on without it would
// fail later and less clearly. The package imports nothing of Ollama.
package paging
