/*
Package ram keeps decoded pages in memory: the RAM tier of a store.

A page in memory is a copy of a file in another tier. Tier serves it for a Lease after the
file was last seen; the store looks for the file then, and calls Confirm or Drop. The pages
that were served least recently go first when the limit is reached.

Rows are outside the Go heap. There, gigabytes that live would let as many of garbage pile up
before the collector runs, and memory would not go back to the system when the limit shrinks.
Rows that are pinned stay, and stay counted, until the last reader unpins them.
*/
package ram
