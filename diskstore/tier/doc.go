/*
Package tier is the contract of a place that holds pages: a Tier.

The store uses tiers through this interface alone. Package dir keeps a tier in a directory;
package guard bounds the time of any tier's operations. Neither package imports the other.

To add a tier, an object store for example, implement Tier, Blob and Upload. The comments of
their methods are the contract; package tiertest checks any tier against the contract.

Files in a tier are pages, tails and one manifest for each fingerprint. Each file has a
recency, the time of its last use. A tier also keeps the bytes of one ledger, which package
ledger reads and writes.
*/
package tier
