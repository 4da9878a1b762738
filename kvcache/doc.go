// Package kvcache carries the computed K/V of an Ollama sequence to pages and back.
//
// [TieredCausal] wraps the cache of Ollama's native runner. While batches complete it
// copies the rows of every full page out of the cache and hands them to a page store; when
// a prompt arrives it finds the longest stored chain of pages and writes their rows into
// free cells, so that only the rest has to be computed. Every other call is forwarded
// untouched: the model itself sees the cache that the model made.
//
// # Words
//
// A page is [TieredCausal.PageTokens] consecutive tokens of one sequence, all layers. A
// tail is an incomplete last page. A slot is one of the runner's sequences; a cell is one
// position of the cache's memory. A flight is a batch that is built and not yet computed; a
// flight lands when its batch is done. A slot is broken from the first position whose rows
// do not follow from the tokens before it (after a context shift, or an image without
// identity): rows from that position on are not stored. A group is one of the model's
// caches; one with a window drops positions. State is the memory of recurrent layers and
// exists only at positions where a batch ended. A plan maps the pages of a restore to
// cells; the plan's pipeline reads some pages while others are written.
//
// # Locks
//
// The runner's lock serializes every look-up and reservation of cells; a method whose
// caller holds the runner's lock says so in its first line. The order of locks is: the
// runner's, TieredCausal's own, the write queue's, the backend's. A batch on a CPU holds the backend's
// lock while it computes, so a restore waits for the device between two batches.
// [TieredCausal.Restore] releases the runner's lock while pages are read, and
// [TieredCausal.BatchDone] takes the runner's lock for graphs.
//
// A method that ends in Locked is called with its own type's mutex held. A method that
// needs the runner's lock says so in its first line, or in the comment of its type.
//
// # Rules
//
// K/V is corrupted silently where one of the rules under "Rules" in docs/architecture.md is
// broken. The table there names the tests of each rule.
//
// Pages are read as long as reading is quicker than computing: package rates decides, from
// the measured costs of both. Package runs finds text that moved.
//
// The package knows nothing about files, except that it hands a page's file on to a cache
// that can use rows in place ([RowPlacer]). Package diskstore has the files; package
// kvcache/tiering joins both and reads the configuration.
//
// # Files
//
//	filling.go                                              restores before the first request
//	restore.go → plan.go → fill.go, pipeline.go → rows.go   from a prompt to its cells
//	flight.go → seal.go → copies.go, spans.go → queue.go    from computed rows to the store
//	decide.go, idle.go, reuse.go                            rates, idle time, text that moved
//	account.go, moves.go, report.go                         reports of prompts, pages and slots
package kvcache
