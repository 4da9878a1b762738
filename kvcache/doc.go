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
// A page is [Options.PageTokens] consecutive tokens of one sequence, all layers. A tail is an
// incomplete last page. A slot is one of the runner's sequences; a cell is one position of the cache's
// memory. An in-flight batch is built and not yet computed; it lands when it is done. A slot is broken
// from the first position whose rows do not follow from the tokens before it (after a context shift, or
// an image without identity): rows from that position on are not stored. A group is one of the model's
// caches; one with a window drops positions. State is the memory of recurrent layers and exists only at
// positions where a batch ended. A plan maps the pages of a restore to cells.
//
// # Parts
//
// TieredCausal answers the runner and owns the parts; none of them sees it.
//
//	slots, inFlight, progress  the mirror of the sequences, the batches that are not done, and the device
//	sealer → writeQueue        from rows in the caches to the store
//	restorer, restoring        one restore: it asks a finder for a plan and a reader for its pages
//	finder, reader             the store's side of a restore; they know no slot
//	accounts, inquirer         the cost of a prompt, and the cause of a miss
//	caches, slot, plan         values with small methods, which know none of the parts above
//
// # Locks
//
// The runner's lock serializes every look-up and reservation of cells; a method whose
// caller holds the runner's lock says so in its first line. The order of locks is: the
// runner's, TieredCausal's own, the write queue's, the backend's. A batch on a CPU holds the backend's
// lock while it computes, so a restore waits for the device between two batches.
// [TieredCausal.Restore] releases the runner's lock while pages are read. [TieredCausal.BatchDone]
// takes no lock of the runner's: a goroutine that waits for it may hold that lock.
//
// TieredCausal's mutex guards slots, inFlight, progress, sealer, accounts and inquirer. inFlight, the
// inquirer and the restorer have a pointer to it, because some of their methods take it. Methods that
// end in Locked are called with the mutex of their type held; so are all methods of slots, progress,
// sealer and accounts. The finder and the reader are called without it. A method that needs the
// runner's lock says so in its first line, or in the comment of its type.
//
// # Rules
//
// K/V is corrupted silently where one of the rules under "Rules" in docs/architecture.md is
// broken. The table there names the tests of each rule.
//
// Package engine decides which pages are read and which computed, with the costs of package rates.
// Package runs finds text that moved.
//
// The package knows nothing about files, except that it hands a page's file on to a cache
// that can use rows in place ([RowPlacer]). Package diskstore has the files; package
// kvcache/tiering joins both and reads the configuration.
//
// # Files
//
//	tiered.go, sequence.go, heal.go, filling.go         TieredCausal: start and end, the runner's calls
//	options.go, report.go                               its settings and its counters
//	restoring.go, request.go, restore.go                a restore and its result: the way to the slot
//	lookup.go, reuse.go                                 its look-ups
//	find.go, reach.go → plan.go, disk.go                how far a text is stored, and how far reading pays
//	prompt.go                                           which tokens and images a text has
//	pipeline.go → spans.go                              from pages to cells
//	seal.go, copies.go, spans.go, queue.go, backlog.go  from cells to the store
//	retry.go                                            pages that could not be written, and when they are tried again
//	account.go, why.go                                  reports of prompts
//	slot.go, inflight.go, progress.go, outputs.go       the state of the runner and of the device
//	rows.go, caches.go                                  the caches that are wrapped
package kvcache
