/*
Package tier is the contract of a place that holds pages: a Tier.

The store uses a tier through Tier, and through Disk what only a filesystem has. Package dir keeps a tier
in a directory; package guard bounds the time of any tier's operations, and package sealed encrypts files and
names for one that others operate. None of these packages imports another.

# A tier of your own

Put it in a folder beside dir, such as diskstore/tier/s3. Implement the 13 methods of Tier, and the types
Upload and Blob, and run the cases of package tiertest on it: diskstore's othertier_test.go does so with
tiertest.Map, a tier in a map. diskstore.Open takes the tier from Options.RemoteTier and puts package guard around it. A
tier in an object store such as S3 would be one type with a client and a bucket:

	Find                  LIST of each name's prefix, all at the same time
	Open                  the same; Blob.ReadAt is a ranged GET
	Create                nothing: an Upload keeps what Write gives it, 1 MiB or less each time
	Touch                 the recency, in the name of an empty object beside the page
	Remove, Quarantine    compare, then DELETE; COPY and DELETE
	Survey, ListShard     LIST of a prefix
	AddBranch, Branches,
	RemoveBranch          empty objects whose names say all; PUT, LIST of a prefix, DELETE
	Account               GET, and PUT with If-Match until no other was faster
	Close                 the client's connections

	Upload.Write          a part of a multipart upload whenever 5 MiB are there
	Upload.Seal           the last part, and a check of the length
	Upload.Commit         end the upload with If-None-Match; where another was first, with If-Match;
	                      then the recency. A page without one was not used yet
	Upload.Abort          drop the upload

No variable turns such a tier on yet. Let Config.Remote of package internal/tierenv hold its address, such
as s3://bucket/pages: all that shows tiers asks whether it is "". Config.StoreOptions makes a directory
of it, Remote.Root: set RemoteTier instead. Do the same where roots are opened for Forget (kvcache/tiering)
and for the command (cmd/kvtier/storage.go), and let Config.OpenRates name the tier. Set
Options.RemoteTimeout if a LIST may take longer than 250 ms. A Root counts and collects the pages: kvtier
ls, stat, gc and rm, which then cannot empty the tier's quarantine and say so. Package inspect sees
directories alone, and with it kvtier check, repair and export.

# The judged file

Remove and Quarantine take the judged file away and no other: that with exactly these Bytes and this
Used. So all methods tell the Used that Commit or Touch has set last, to the nanosecond: pages of a
conversation differ by 10 ns for each token. S3 sets LastModified itself, a multipart upload has its
metadata before Commit knows Used, and LIST shows no metadata. Therefore Used is in a name of its own. A
file that takes the place of the judged one after you compared is the same page: losing it costs time.

Commit replaces on a condition because Replaced and Freed correct the number of files: of two uploads at
the same time, one must learn of the other.

# What it may assume

  - uploads of a name hold the same page, perhaps in another encoding. The last one wins: the file
    before it may be damaged;
  - callers check every byte that they use, and lose nothing but time where a file is gone;
  - names have few bytes and a fixed form, and a look-up asks for those of one prompt in few calls
    of Find. One call of Branches has a few hundred answers at most, a look-up 32 such calls;
  - Survey and ListShard are called by counts and collections, every ten minutes at most while nothing
    is full, and when a model is removed; Survey also behind a request, to explain a miss;
  - package guard ends waits, limits operations that run at the same time, turns panics into
    errors, and keeps off a tier that fails: there is no need to retry.

It need not rename, lock, or tell free space and time: OnDisk tells what holds instead. A claim of a
process that died ends after ClaimLife, 24 h, because nobody can know that it died. Nothing of kvtier
empties the quarantine: bound it by a rule of your own, such as objects that expire.

# What a directory gives in addition

A tier in a filesystem is a Disk: it has syncs, locks, temporary files, empty folders, and the list that
explains misses.

# Files

Files in a tier are pages, tails and one manifest for each fingerprint. Each file has a
recency, the time of its last use. A tier also keeps the bytes of one ledger, which package
ledger reads and writes, and branches, which lead to pages by the beginnings of their tokens.
*/
package tier
