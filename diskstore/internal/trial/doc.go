/*
Package trial compares two forms of pages, raw and compressed, by the reads of restores.

A disk that gives fewer bytes than the processors decode returns compressed pages sooner. A quicker
one, and the page cache, return raw pages sooner. Which is so depends on the disk, on the rest of the
machine's work, and on how much of the pages is in memory. A Trial therefore lets new pages take turns
between both forms, by their keys, and compares the times in which pages of either come back:
neighbors in a conversation are read under the same conditions. Once one form is known to be the
quicker one, new pages take it, and a few take the other, so that a change shows.

	t := trial.New()
	t.Compress(key)                 // the form of a new page
	t.Read(page, form, rows, took)  // a page came back
	content, version := t.Record(…) // for the next process
	t.Recorded(version)             // content is on the disk

A Trial reads and writes nothing of its own.
*/
package trial
