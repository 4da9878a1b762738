/*
Package dir keeps a tier in a directory: on the local disk, or on anything mounted.

The directory is the index, and file times are the recency. A file is written under a
temporary name, synced (Seal), renamed (Commit), and its directory synced (Persist), so that a
visible file is whole after any crash. No lock is held during these syncs. Paths are in
paths.go.

A Tier is made of parts. Each sees the root and what else it needs, and none the Tier.

	root.go, watch.go       the root: safe, and still the same directory
	folders.go              directories below it, made durable once
	tier.go, upload.go      one file: look-up, reading, writing
	list.go                 all files
	branches.go, older.go   empty files that lead to pages and tails; files of earlier versions
	account.go              the ledger's bytes, replaced under a lock
	move.go, quarantine.go  files that leave their place; those that failed their check
	temp.go, leftovers.go   temporary files of this process
	reach.go, sweep.go      which processes have died, and their temporary files
	peers.go, clock.go      living processes; the filesystem's time, which may be another machine's
	silly.go                removed files that an NFS client keeps while they are open
	walk.go                 every file below a root, for tools

Operations wait as long as the filesystem does, unless Options.Timeout is set.
*/
package dir
