/*
Package s3 keeps a tier in an object store that speaks S3.

Tier is one bucket and a prefix in it. Objects have these keys below the prefix:

	v1/<fingerprint>/manifest
	v1/<fingerprint>/p/<2 digits>/<key>        a page, of which the digits are the first
	v1/<fingerprint>/t/<2 digits>/<key>        a tail
	v1/<fingerprint>/b/<2 digits>/<prefix>/…   a branch: its key says all
	v1/ledger
	v1/quarantine/…

The recency of a page is the name of an empty object beside it, <key>~<nanoseconds>: a listing tells it,
which shows no metadata. Where two processes set it at the same time the later one counts. A page
without one has the time of its upload.

# What the store must do

It must refuse a PUT with If-None-Match for an object that is there, and one with If-Match for another
ETag than it has: the ledger is changed by nothing else. Account tries both on an object of its own before it
changes the ledger first, and returns ErrUnconditional where they are ignored: nothing is stored then. Objects
must be listed as soon as they are written.

Nothing of kvtier removes what is in quarantine, and uploads of several parts whose process died: let a
rule of the bucket expire both, after some days.
*/
package s3
