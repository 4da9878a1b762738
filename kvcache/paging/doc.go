// Package paging reads the OLLAMA_PAGED_* settings and makes a runner's pager from them.
//
// Settings that cannot work are refused with a sentence that names them: paged attention
// is asked for where a context would not fit otherwise, so that quietly going on without
// it would fail later and less clearly. It imports nothing of Ollama.
package paging
