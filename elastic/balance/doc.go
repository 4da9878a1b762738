// Package balance divides a budget of memory between the processes that hold KV memory, as their load
// moves: it looks at their segments and sets their limits.
//
// A process that has work needs the memory of that work, and more for its answers. Memory of
// conversations that nobody waits for is kept where there is memory, since going on with them is
// quicker then. Limits that were set add up to the budget at most: a limit rises only by memory that
// others have given back. A process that begins counts with its own limit until the next look, and
// memory that requests use stays theirs until they end.
//
// Nothing is remembered between two looks: without a balancer, limits stay as they are.
package balance
