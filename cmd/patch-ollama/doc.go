// Command patch-ollama materializes Ollama's source, applies kvtier's patches to
// it and builds the result.
//
//	patch-ollama build                 all of it, into build/ollama
//	patch-ollama test                  upstream's own tests in the patched source
//	patch-ollama fetch|apply|revert    one part of it
//	patch-ollama check --all           does the series fit every release?
//	patch-ollama status                what is there
//	patch-ollama format                write patches/ from commits in the source
//
// It runs from anywhere inside a kvtier checkout and writes nowhere but the
// build directory (format also writes the patches folder). The work is done by
// internal/ollamasrc; a verb here is flags, refusals and what a person sees.
//
// Working on a patch: patch-ollama apply, edit and commit in build/ollama/src,
// patch-ollama format. To amend a patch in the middle of the series, rebase
// there as usual.
package main
