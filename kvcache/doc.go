// Package kvcache carries the computed K/V of an Ollama sequence to pages and back.
//
// [TieredCausal] wraps the cache of Ollama's native runner. While batches complete it
// copies the rows of every full page out of the cache and hands them to a page store;
// when a prompt arrives it finds the longest stored chain of pages and writes their rows
// into free cells, so that only the rest has to be computed. Everything else is forwarded
// untouched: what the model itself sees is the cache it made.
//
// # Words
//
// A page is [TieredCausal.PageTokens] consecutive tokens of one sequence, all layers. A
// tail is an incomplete last page. A slot is one of the runner's sequences; a cell is one
// position of the cache's memory. A flight is a batch that is built; it lands when it is done.
// A slot is broken from the first position whose rows do not follow from the tokens
// before it (after a context shift, or an image without identity): nothing from there on is
// stored. A group is one of the model's caches; one with a window drops positions. State
// is what recurrent layers remember, which exists only where a batch ended. A plan says which
// pages a restore reads into which cells; its pipeline reads some while others are written.
//
// # Locks
//
// The runner's lock serializes everything that looks cells up or takes them, and is held
// by the caller in BatchBuilt, EndSequence, Remove and CopyPrefix. TieredCausal's own lock
// is taken after it, the backend's last: that one is held while a batch computes on a CPU, so
// a restore waits for the device between two batches. [TieredCausal.Restore] lets go of the
// runner's lock while it reads, and [TieredCausal.BatchDone] takes it for graphs.
//
// A method that ends in Locked is called with its own type's mutex held. One that needs the
// runner's lock says so in its first line, or its type does.
//
// # Rules
//
// K/V is corrupted silently where one of the rules under "Rules" in docs/architecture.md is
// broken. That table names the tests of each rule.
//
// Pages are read as long as that is quicker than computing them: package rates decides, from
// what both have cost. Text that moved is found by package runs.
//
// The package knows nothing about files, but hands a page's file on to a cache that can use
// rows where they lie ([RowPlacer]): see package diskstore for those, and package tiering
// (below this one) for the configuration that joins both.
package kvcache
