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
// position of the cache's memory. A flight is a batch that is built and not yet computed.
// A slot is broken from the first position whose rows do not follow from the tokens
// before it (after a context shift, or an image without identity): nothing from there on is
// stored. A group is one of the model's caches; one with a window forgets positions. State
// is what recurrent layers remember, which exists only where a batch ended.
//
// # Locks
//
// The runner's lock serializes everything that looks cells up or takes them, and is held
// by the caller in BatchBuilt, EndSequence, Remove and CopyPrefix. TieredCausal's own lock
// is taken after it, the backend's last: that one is held while a batch computes on a CPU, so
// a restore waits for the device between two batches. [TieredCausal.Restore] lets go of the
// runner's lock while it reads, and [TieredCausal.BatchDone] takes it for graphs.
//
// # Rules
//
// K/V is corrupted silently where one of these is broken, so each has a test of its name.
//
//   - Writes: a batch of a finished sequence may be built and still run, and use cells that
//     Remove or a window has freed. Done is not computed: nothing waits for a batch without
//     outputs, and what the host writes is not ordered with it. A restore waits until the
//     device has computed all that was built before it took its cells.
//   - Reads: a batch without outputs does not wait for its device. Rows are copied after
//     the backend is synchronized.
//   - Graphs: the memory of a graph is that of the outputs of the one before. One of ours is
//     computed between two batches and under the runner's lock, or in memory of its own.
//   - When: cells are noted when a batch is built, and rows are copied after its outputs
//     are ready and before the next batch may compute.
//   - Removal: complete pages leave before their cells are freed or rotated, and what a
//     flight would have added past the cut is forgotten.
//   - Budget: cells are reserved before the first row is read; no room means no restore.
//   - Publishing: while a restore has let go of the runner's lock its slot claims no row that
//     is not written.
//   - Identity: rows are stored under the exact tokens and images that made them, or not at
//     all.
//   - Windows: rows that a batch in flight may overwrite are not copied, and a window comes
//     back whole or not at all.
//   - State: it is read before the next batch runs, and used at its one position alone.
//   - Shifts: what is reused at another position is never stored, nor what follows from it,
//     and exact rows replace it.
//   - Spans: a restore never ends between tokens that attend to each other forwards.
//
// Pages are read as long as that is quicker than computing them: package rates decides, from
// what both have cost. Text that moved is found by package runs.
//
// The package knows nothing about files, but hands a page's file on to a cache that can use
// rows where they lie ([RowPlacer]): see package diskstore for those, and package tiering
// (below this one) for the configuration that joins both.
package kvcache
