/*
Package recency keeps the order of pages by time.

A file's modification time is its recency, and this time alone orders files: a page's
recency is always later than the recency of every page that continues it. So a collection
needs only a listing: times tell which files to evict, the least recently used ones or those
that package reuse ranks lowest.

	recency of a page = time its chain was last used − start × 10 ns + number of its uses

All pages that one look-up finds, and all pages stored after them, share the first term. The
first term only moves forward, from a chain's first page to its last; Futures handles
wrong clocks. Before a page's recency moves, the recencies of the pages before it move as
far, unless they are later already.

The number of uses, 0 to reuse.MostUses, is in nanoseconds: it tells how often the page was used again after
it was stored. Filesystems with coarser times lose it, and so does a copy, and then the page counts as new.

10 ns per token distinguish neighbours on filesystems that store 100 ns. Where times are
coarser, and for files whose times were lost in a copy, headers order pages with equal
times. Times are not synced: a power cut costs order, not pages.
*/
package recency
