// Package llamatier keeps the slots of a llama-server in a page store.
//
// An [Engine] is a running llama-server. A [Tier] knows which tokens each of the engine's
// slots holds. Before a request, [Tier.Begin] chooses the slot and puts stored pages into it,
// as one file that llama-server restores. Some seconds after a request, llama-server saves the
// slot into a file, and the Tier stores the pages that are new. Package slotfile makes the files.
//
// The Tier need not know the tokens of a slot exactly: llama-server compares a prompt with a
// slot itself, and computes the rest. A file that is restored must be right; package llamastate
// says how that is ensured. A slot whose context may have been shifted is not stored, because
// its rows may no longer belong to its tokens: see [Answer].
//
// After any failure the engine computes the prompt, as without a Tier.
package llamatier
