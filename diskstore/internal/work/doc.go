/*
Package work runs, bounds and ends the operations of a store.

Life counts the operations of callers, which end when the store closes. Traffic lets
background work wait while callers read and write. Queue runs background jobs, one after
another, and holds at most maxQueuedJobs. Once runs a function some time after it was
started. No goroutine and no timer exists while there is no work.
*/
package work
