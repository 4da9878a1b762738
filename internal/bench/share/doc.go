// Package share simulates servers that share a budget of KV memory: the pools, their segments and the
// policy that moves limits are those of the product, and the rest is a model in virtual time.
//
// A server admits prompts, gives cells memory and obeys limits as the patched runner does. Computing
// takes tokens over a rate: prompts one after the other, answers side by side. Bytes are scaled down:
// a block of cells is one granule of 4 KiB.
//
// The same requests meet a static split, where each server has its part of the budget for good and
// refuses prompts that the part does not hold, and limits that a policy moves. Tests compare both;
// -figures prints the table of docs/elastic.md.
package share
