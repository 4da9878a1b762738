// Package e2e tests a built, patched Ollama from outside: real server, real runner, real
// page files.
//
// The tests need build/ollama/bin/ollama (make build), or the executable that
// KVTIER_OLLAMA names, and skip without one. The tests compare log probabilities at full
// precision: a restored conversation must give the same bits as a slot that was never
// evicted. Requests run one at a time, so that both sides compute the same batches. Tests
// with parallel requests use a bound instead, the difference between two stock servers.
package e2e
