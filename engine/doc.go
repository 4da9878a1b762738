// Package engine has what is alike in Ollama's runner (kvcache) and in a llama-server (llamatier).
//
// # When a page is read and when computed
//
//  1. The engine looks up the stored pages of a prompt. A look-up on a slow disk ends after
//     4 s with what it has found, one on a disk that hangs after 5 s with nothing ([Disk]). The last
//     token of a prompt is always computed.
//  2. Exact pages come before lossy ones: a chain with lossy pages is tried only where it reaches at
//     least a page further than the exact pages and the slot, and has no lossy page where an exact one
//     is stored. If it does not pay, the exact pages are tried.
//  3. The engine describes the pages as a [rates.Chain]: their positions, bytes and tiers. A chain is
//     Indivisible in a model with windows or recurrent state, because these belong to the end of the last
//     page: all of its pages are read or none. Then names a step behind the reading that takes time as
//     well: llama-server loads the file of a restored slot. A slot of llama-server is replaced for at
//     least 64 tokens that it does not hold.
//  4. [Gate.Pays] says how many leading pages are read: as many as make reading them and computing the
//     rest take least, by the costs that were measured so far.
//  5. [Read] reads these pages, [PagesAtOnce] at a time. From a tier whose speed is not known the first
//     page is read alone. The Reading ends before a page that does not come while reading it can still
//     be quicker than computing it, and before pages that are computed sooner at the speed seen. A file
//     that llama-server reads as a stream has one time limit instead.
//  6. [Gate.Skip] counts the pages that are computed instead, and reads some of them behind the request
//     if their tier may be quick again.
//
// Package rates has the formulas and the file of measured costs. With Gate.Always, which
// OLLAMA_KV_TIER_TEST=1 sets for tests, costs decide nothing: each page that was found is read.
//
// # What a prompt cost, and why
//
// [Origins] say where the tokens of a prompt came from. An [Inquirer] records the prompt and, behind its
// request, says why tokens were computed: it compares the prompt with the latest ones and asks the store for
// tombstones and for the same text under another identity. Package telemetry/why has the order of causes.
package engine
