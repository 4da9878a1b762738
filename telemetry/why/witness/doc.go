// Package witness gathers facts about a prompt from a page store, behind its request: the tombstone
// of a page, the same text under another identity, tiers that do not answer. An engine's side runs
// its explanations in a Queue, so that no request waits for one.
package witness
