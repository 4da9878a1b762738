/*
Package ledger knows how much room the files below a root take, and who may take more.

A Ledger is the content of usage.json, shared by all processes that use a root: an upper
bound of the bytes on the disk, and what each process has claimed of the rest. A Book is one
process's part of it: it claims room in large steps, sets some of it aside for each file
(Room), and records what became of the files.

The package works on bytes. A tier keeps them, and gives them to one process at a time.
*/
package ledger
