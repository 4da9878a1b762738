/*
Package reuse learns which pages of a tier are used again, and ranks pages by it.

A page has a number of uses, 0 to MostUses, and an idle time, that since its last use. Counts are the uses of a
tier's pages so far: how many pages began to be idle after a number of uses, and after which idle time they
were used again. Idle times are in classes, the powers of two of a second. A page that left the tier and is
stored again counts as used again, as long as its tombstone tells its uses and its idle time.

The worth of a page is what is gained by a second of its room: of all times for which the page could still be
kept, the largest ratio of the share of such pages that are used again in that time to the mean time that they
wait for it. This is the Gittins index of a job that may end at any moment. It has no setting: the same counts
give few seconds to prompts of a script that come once, and a night to those of a chat that goes on next morning.

The worth may rise with the idle time: where prompts come a minute after the last answer, pages that have waited
for half a minute are worth more than new ones. But a page must not leave before the pages that continue it. All
pages of a chain that were used together have the same idle time, but for milliseconds; a page that was used
without one that continues it has been used more often, and is worth at least as much as any page that was used
less often and is idle for at least as long. Where uses are not told apart, which is beyond MostUses, and in
filesystems that lose them, no page is worth more than one that is idle for less long. Classes of pages whose
counts say otherwise are all worth the mean of their pages, and the last use decides between them.

Without any use, as in a new tier, all pages are worth the same, and the order is that of their last use.

What a page costs to compute again is not in its worth. It grows with the page's place in its chain, and a page
must leave before the pages that it continues, which cost less: within a chain the order is given. Larger models
have pages of more bytes, which take longer to compute: neither decides.
*/
package reuse
