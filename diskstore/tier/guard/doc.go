/*
Package guard makes a tier answer in time.

A mount that hangs would hang who asks it. Tier runs each operation of the tier inside in one
of a few goroutines, and gives the operation up when its time is over. A breaker stops asking
a tier that fails: it is closed, open, or half open, and one operation at a time finds out
whether the tier is back.
*/
package guard
