/*
Package guard bounds the time of a tier's operations.

A mount that hangs would hang its callers. Tier runs each operation of the tier below in one
of a few goroutines, and gives the operation up when its time is over. A breaker keeps
operations from a tier that fails: the breaker is closed, open, or half open, and one
operation at a time tests whether the tier is back.
*/
package guard
