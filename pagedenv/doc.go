// Package pagedenv reads the variables of paged attention that need no pager: for a runner, which has one,
// and for tools, which tell what a runner will do.
package pagedenv
