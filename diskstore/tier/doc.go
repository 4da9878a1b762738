/*
Package tier says what a place that holds pages must do: a Tier.

The store knows tiers by this interface alone. Package dir keeps a tier in a directory;
package guard makes any tier answer in time. The two know nothing of each other.

To add a tier, an object store for example, implement Tier, Blob and Upload. The comments of
their methods are the contract; the tests of package dir check it for a directory.

Files in a tier are pages, tails and one manifest for each fingerprint. Each has a recency,
the time at which it counts as used last. A tier also keeps the bytes of one ledger, which
package ledger reads and writes.
*/
package tier
