// Package e2e tests a built, patched Ollama from outside: real server, real runner, real
// page files.
//
// The tests need build/ollama/bin/ollama (make build), or the executable that
// KVTIER_OLLAMA names, and skip without one. They compare log probabilities at full
// precision: a restored conversation must give the bits that a slot which was never evicted
// gives. Requests run one at a time, so that both sides compute the same batches; where they
// do not, a bound says how far apart two stock servers are. The soak plays random histories.
package e2e
