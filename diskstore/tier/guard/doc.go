/*
Package guard bounds the time of a tier's operations.

A mount that hangs would hang its callers. Tier runs each operation of the tier below in one
of a few goroutines, and gives the operation up when its time is over. A breaker keeps
operations from a tier that fails: the breaker is closed, open, or half open, and one
operation at a time tests whether the tier is back.

vfs.Bound limits the time of single calls of a filesystem instead, for tools that walk a root by
its paths: the first call that hangs ends them. Both wait with steady.Within.
*/
package guard
