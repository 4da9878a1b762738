/*
Package work bounds what a store does at a time and ends it.

Life counts the operations of callers: they end when the store closes. Traffic lets work that
nobody waits for stand back while callers read and write. Queue runs such work, one job after
another, of at most maxQueuedJobs; Once begins a job some time after it was asked for. No
goroutine and no timer exists while there is nothing to do.
*/
package work
