/*
Package dir keeps a tier in a directory: on the local disk, or on anything mounted.

The directory is the index, and file times are the recency. A file is written under a
temporary name, synced (Seal), renamed (Commit), and its directory synced (Persist), so that a
visible file is whole after any crash. No lock is held during these syncs. Paths are in
paths.go.

	tier.go, list.go, upload.go, move.go   the operations of a Tier
	branches.go                            empty files that lead to pages and tails
	older.go                               files of earlier versions
	account.go                             the ledger's bytes, replaced under a lock
	temp.go, sweep.go, peers.go            temporary files of this process and of dead processes
	silly.go                               removed files that an NFS client keeps while they are open
	quarantine.go                          files that failed their check
	watch.go, root.go                      checks that the root is safe and still the same
	clock.go                               the filesystem's time, which may be another machine's
	walk.go                                every file below a root, for tools

Operations wait as long as the filesystem does, unless Options.Timeout is set.
*/
package dir
