/*
Package dir keeps a tier in a directory: on the local disk, or on anything mounted.

The directory is the index, and file times are the recency. A file is written under a
temporary name, synced (Seal), renamed (Commit), and its directory synced (Persist), so that a
visible file is whole after any crash. No lock is held during these syncs. Paths are in
paths.go.

A Tier is made of parts. Each sees the root and what else it needs, and none the Tier.

	root.go, watch.go  the root: safe, and still the same directory; directories below it
	tier.go, upload.go one file: look-up, reading, writing
	list.go            every file below the root, and what it is
	vectors.go         vectors of pages, which kvtier search makes
	branches.go        empty files that lead to pages and tails
	account.go         the ledger's bytes, replaced under a lock
	move.go            files that leave their place; quarantine
	temp.go            temporary files of this process
	sweep.go, reach.go which processes live, and the temporary files of the others
	clock.go           the filesystem's time, which may be another machine's

Operations wait as long as the filesystem does, unless Options.Timeout is set.
*/
package dir
