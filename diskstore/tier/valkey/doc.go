/*
Package valkey keeps a tier in Valkey or Redis: version 7 of Redis, any version of Valkey.

The server is one that has all keys, alone or with replicas behind one address. A node of a Cluster
answers MOVED, which is an error. On a replica, and for a user who may only read, the tier is read.

# Keys

All keys begin with the prefix and "v1:".

	page:FINGERPRINT:KEY     hash: bytes, used (ns since 1970) and id, the name of the parts; also
	                         tail:… and manifest:…
	part:ID:0, part:ID:1, …  partBytes of the page each, the last one fewer
	shard:page:FINGERPRINT:FIRST
	                         set of the keys of a shard's pages; also tail and manifest
	shards                   set of the names of all shards
	branches:FINGERPRINT:FIRST
	                         sorted set, all of score 0, of the branches at prefixes that begin so
	ledger                   string
	quarantine               sorted set of the ids in quarantine, by the second at which they end
	quarantine:ID            hash of such a page, with name and reason; its parts keep their names

An upload writes parts under a random id. They expire after uploadLife. Commit is a script: when all parts
are there, it lets the page's hash name them and keeps them from expiring; the parts of the page that was there
before expire after replacedLife. So a visible page is whole, and who reads a page that was replaced or
removed gets its bytes, or tier.ErrStale, and never others.

# Eviction

The server may evict any key (maxmemory-policy allkeys-lru). A page that lacks a part is no page: Find
looks for all parts, which makes them used, in the round trip in which it looks for the page. Lists remove
what is left of such pages. A page whose shard was evicted, or with it the set of all shards, is found, and
is listed again after Touch. An evicted ledger is an empty one, and branches are lost like pages. With volatile-lru and noeviction the
server keeps all pages, and the tier's budget is the limit; when memory is full, an upload fails with
tier.ErrNoSpace. Nothing is more durable than the server's own files.

# Quarantine

Quarantine keeps quarantineFiles pages for quarantineLife each. A person lists them by
ZRANGE PREFIXv1:quarantine 0 -1, and deletes them by UNLINK and ZREM.

# Users

A user of an ACL needs the keys and these commands:

	ACL SETUSER kvtier on >PASSWORD ~PREFIX* -@all +select +eval +eval_ro +get +set +getrange +strlen
	    +exists +touch +persist +expire +unlink +rename +hmget +hset +sadd +srem +sscan
	    +zadd +zrem +zcard +zrange +zremrangebyscore +time

# Waiting

Each operation has a connection of its own, of maxConns at most, so that a look-up does not wait
behind a page. A connection whose answer did not come before its context's deadline is closed. An operation
returns when its context ends; what it began ends after answerIn at most.
*/
package valkey
