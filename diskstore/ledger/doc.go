/*
Package ledger counts the bytes of the files below a root and reserves room for processes.

A Ledger is the content of usage.json, shared by all processes that use a root: an upper
bound of the bytes on the disk, and the claim of each process. A Book is one process's part
of the ledger: it claims room in large steps, reserves part of the claim for each file
(Room), and records the files written and removed.

The package works on the ledger's bytes. A tier stores these bytes and lets one process at a
time change them.
*/
package ledger
