// Package why says why a prompt computed tokens that it might have restored.
//
// [Recents] keeps the latest prompts of a process in memory and compares a prompt with them.
// [Explain] chooses the cause of a miss from [Facts], which the engine's side gathers. The
// package does no I/O and knows no engine.
//
// # The position decides
//
// The cause is that of the first token that was not restored, Facts.Held: later tokens, stored or not,
// could not be restored without it. With UnreadState (a stored state or window ends elsewhere) it is that
// of the first token that is not stored.
//
// # The order
//
// Facts that prove something of exactly this text come first, guesses last:
//
//  1. Stored and not read: quicker to compute, tier down, damaged (Facts.Found, Facts.Unread).
//  2. Stored once, or about to be: damaged in its place, in the write queue or in another slot,
//     evicted with a tombstone, given up by the write queue.
//  3. Computed once and not stored: by a request with kv_store: false, in a slot that a shift had
//     broken, or behind an image without identity.
//  4. Another image at the position, or text that comes back after the token that differs: the
//     prompt was changed in its middle.
//  5. Text that goes on where everything known of it ends: never seen.
//  6. Stored under another identity, whose first pages are found.
//  7. A tier does not answer in time: the text may be there.
//  8. The first token that differs from a similar prompt or from stored text; else never seen.
//
// A few situations have no cause of their own; Miss.Detail tells them apart. Text that was computed and could
// not be stored (the queue was full, or the limit of bytes written in a day was reached) counts as evicted,
// from the slot. Stored pages for which the cache had no room count as quicker to compute. Text of which an
// earlier process had not stored the pages when it was killed was never seen by this process.
//
// # Privacy
//
// Text of requests with kv_store: false is not kept: Recents keeps 64-bit hashes of some of its
// beginnings, under a random seed. Words are nil where the prompt itself is private. A process has
// one namespace, and Recents belongs to a process: no text is compared across namespaces. Of all this
// only Words, in the reports of package collect, are ever written to a file.
//
// # Supplied by an engine's side
//
// For each request: [Recents.Add] with the tokens of the prompt and the digests of its images when
// it arrives (this copies nothing and takes no time), and the facts that the engine knows, zero for
// those that it does not: another cause later in the order is then chosen. Package engine adds those
// of the store, compares and explains behind the request. [Recents.Done] gets the text that was
// computed in the end, the answer included. [Recents.Busters] goes into telemetry.Report.Busters.
package why
