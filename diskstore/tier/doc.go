/*
Package tier is the contract of a place that holds pages: a Tier.

The store uses a tier through Tier, and through Disk what only a filesystem has. Package dir keeps a tier
in a directory; package guard bounds the time of any tier's operations, and package sealed encrypts files and
names for one that others operate. None of these packages imports another.

# A tier of your own

Package s3 keeps a tier in an object store, package valkey in Valkey or Redis; package sealed encrypts what one of
them has. internal/remote opens the one that a variable names. Put another in a folder beside them. Implement the 13
methods of Tier, and the types Upload and Blob, and run the cases of package tiertest on it. A tier may be a
Noter and Collected as well. diskstore.Open takes the tier from Options.RemoteTier and puts package guard around it.
Set Options.RemoteTimeout if a look-up may take longer than 250 ms. A Root counts and collects the pages: kvtier ls, stat, gc and rm, which then cannot empty the
tier's quarantine and say so. Package inspect checks and repairs any tier, and exports from directories alone.

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
