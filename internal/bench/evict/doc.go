/*
Package evict measures, in virtual time, what share of prompts' blocks stores of several sizes give back, by
the order in which pages leave them.

A trace is replayed on the product's own diskstore.Store in memory. A token of a page stands for a block of the
trace, and a store has room for some share of the trace's distinct blocks. Each prompt is looked up, what was
found is read, and the rest is stored.

Beside it stands Belady's rule, for a simulated store that knows what comes: what is used furthest in the future
leaves. As in the product, only pages that no stored page continues may leave, which costs nothing: they are used
no sooner than the pages before them. No store of as many pages gives back more.

A block is given back where its page is found. All blocks of all prompts count, whether whole or not, also the
last one, of which a server computes the last token at least.

Two traces are made of random numbers, always the same. Agents is a day of 40 sessions of coding agents: 60
turns, seconds to minutes apart, each with an answer and a tool's output more than the one before, together
about 1,900 tokens, behind a system prompt and tools of 12,000 tokens that all share. 35 % of the sessions go on
hours later; a sub-agent that shares the system prompt works after 4 % of the turns; a context of 120,000 tokens
is compacted to the system prompt and a summary.

Home is a household's 28 days: each day four chats of eight turns of about 1,000 tokens, 30 % of them about a
file, of which 35 % go on days later, and four single prompts; one evening a week six questions about a document
of 60,000 tokens; and each night a script's 40 prompts, which share a task and are never asked again.
*/
package evict
