/*
Package team measures, in virtual time, whether package rates reads the pages of an engine where that is
quicker than computing them.

A Cell is one link, one model and one size of pages. Its restores are simulated with the product's own
decisions: rates.Rates plans, watches, learns and probes as package engine makes it. The link is that of
package guard: a page takes a round trip to open, one for its header, and then one for each MiB, of which
two of a page and four of all pages are on the way at a time; engine.PagesAtOnce pages are read at a time.
The bytes of all requests queue for the link.

A Day replays a trace on several servers. Each has a diskstore.Store in memory, in whose pages a token stands
for a block of 512 tokens, and decides by its own rates. Answers take no time, and no slot is hot.
*/
package team
