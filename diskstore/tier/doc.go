/*
Package tier is the contract of a place that holds pages: a Tier.

The store uses tiers through this interface alone. Package dir keeps a tier in a directory;
package guard bounds the time of any tier's operations. Neither package imports the other.

# A tier of your own

Implement the 13 methods of Tier, with Blob and Upload, give the result to
diskstore.Options.RemoteTier, and run the cases of package tiertest on it: diskstore's
othertier_test.go does so with a tier in a map. A tier in an object store such as S3 would be one
type with a client and a bucket:

	Find, Open            HEAD of all names at the same time; ranged GET
	Create                PUT with If-None-Match; where another was first, PUT with If-Match
	Touch                 the recency, in an object beside or in a batch of them
	Remove, Quarantine    DELETE; COPY and DELETE
	Survey, ListShard     LIST of a prefix
	AddBranch, Branches,
	RemoveBranch          empty objects whose names say all; PUT, LIST of a prefix, DELETE
	Account               GET, and PUT with If-Match until no other was faster
	Close

It may assume that

  - pages never change: uploads of a name at the same time have the same content. Upload.Commit
    creates the file if it is absent; if another was first, it replaces that, which may be damaged,
    and Committed says so;
  - callers check every byte that they use, and lose nothing but time where a file is gone;
  - names have few bytes and a fixed form, and a look-up asks for those of one prompt in few calls
    of Find. No look-up lists more than a few hundred branches;
  - Survey and ListShard are called by counts and collections alone, every ten minutes at most
    while nothing is full;
  - package guard ends waits, limits operations that run at the same time, turns panics and
    impossible answers into errors, and keeps off a tier that fails: there is no need to retry.

It need not rename, lock, or tell free space and time: OnDisk tells what holds instead.

# What a directory gives in addition

A tier in a filesystem is a Disk: it has syncs, locks, temporary files, empty folders, the list that
explains misses, and files of earlier versions.

# Files

Files in a tier are pages, tails and one manifest for each fingerprint. Each file has a
recency, the time of its last use. A tier also keeps the bytes of one ledger, which package
ledger reads and writes, and branches, which lead to pages by the beginnings of their tokens.
*/
package tier
