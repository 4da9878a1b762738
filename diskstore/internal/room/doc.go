/*
Package room makes room in the tiers of a store.

Collector brings one tier within its limit: it knows by how much the tier is over, which files are
obsolete or are worth least (package reuse), and removes these in order, every page before the pages that it
continues. A page goes to the tier below if there is one that takes it, and is deleted otherwise.

Maker reserves room in the local tier for one page at a time, and has a Collector make it in the
background where there is none.

A tier's limit is its budget. A tier without one leaves a part of its filesystem free.
*/
package room
