/*
Package ram keeps decoded pages in memory: the RAM tier of a store.

A page in memory is a copy of a file in another tier. Tier serves the page for a Lease after
the file was last seen; then the store looks for the file and calls Confirm or Drop. At the
limit, pages served least recently are evicted first.

Rows are outside the Go heap. On the heap, live gigabytes would let as many gigabytes of
garbage pile up before the collector runs, and memory would not return to the system when the
limit shrinks. Pinned rows stay, and count, until the last reader unpins them.
*/
package ram
