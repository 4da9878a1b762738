/*
Package s3 keeps a tier in an object store that speaks S3.

Tier is one bucket and a prefix in it. Objects have these keys below the prefix:

	v1/<fingerprint>/manifest
	v1/<fingerprint>/p/<2 digits>/<key>        a page, of which the digits are the first
	v1/<fingerprint>/t/<2 digits>/<key>        a tail
	v1/<fingerprint>/b/<2 digits>/<prefix>/…   a branch: its key says all
	v1/ledger, v1/lock, v1/uses/…
	v1/quarantine/…

The recency of a page is the name of an empty object beside it, <key>~<nanoseconds>: a listing tells it,
which shows no metadata. Where two processes set it at the same time the later one counts. A page
without one has the time of its upload.

# What the store must do

It should refuse a PUT with If-None-Match for an object that is there, and one with If-Match for another ETag than
it has: the ledger and the lock are changed by nothing else. Account and Lock try both first, on an object of its
own. A store that ignores them is used as well, as Garage, without a collector: its ledger is a guess, and a rule of
the bucket has to expire pages. Objects must be listed as soon as they are written.

# Room

A use costs no request: Note remembers it, and a timer writes those of five minutes as one object, by the clock of the
store, which its answers tell. Lists and collectors read these objects; the one that collects folds them into one,
v1/uses/folded, and deletes them. So a page whose first use for long is in another process's last five minutes may go;
one whose use was written stays while older ones do. v1/lock is empty, or ten minutes old, or one machine collects.

Where a rule deletes by age, renew=DAYS in the address lets a page that is used and as old be copied onto itself, at
most once in that time; it is off by default, since each copy is a request and most buckets have no such rule.

Nothing of kvtier removes what is in quarantine, and uploads of several parts whose process died: let a
rule of the bucket expire both, after some days.
*/
package s3
