// Package torture plays field bugs of caches for K/V against a built server, from outside: pages
// of another conversation, files without content, an index that is older than the files, colliding
// hashes, pages that are evicted while they are read. Each case is named after a bug of another
// project; README.md lists them.
//
// The cases know a server only as a subject: the stock llama-server behind ours, and the patched
// Ollama. The oracle is the same server with tiering off, which computes everything. Prompts are
// computed in batches of a page, so that a restored prompt gives the same bits as a computed one.
//
// The tests need build/llama or build/ollama, and skip without them.
package torture
