// Command patch-ollama materializes Ollama's source, applies kvtier's patches to
// it and builds the result.
//
//	patch-ollama build                 fetch, apply and build, into build/ollama
//	patch-ollama test                  upstream's own tests in the patched source
//	patch-ollama fetch|apply|revert    one step
//	patch-ollama check --all           try the series on every release
//	patch-ollama status                show the source and its patches
//	patch-ollama format                write patches/ from commits in the source
//	patch-ollama build --without paged leave an optional set of patches out
//
// patch-ollama runs from anywhere inside a kvtier checkout and writes only into the
// build directory (format also writes the patches folder). Package internal/ollamasrc
// does the work; a verb here is flags, refusals and output for people.
//
// patch-ollama exits with 0 when all is well, with 1 when a verb failed or a check found a
// fault, with 2 when the command line is wrong, and with 130 when it was interrupted.
//
// Working on a patch: patch-ollama apply, edit and commit in build/ollama/src,
// patch-ollama format. To amend a patch in the middle of the series, rebase
// there as usual.
package main
