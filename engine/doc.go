// Package engine has what is alike in Ollama's runner (kvcache) and in a llama-server (llamatier).
//
// # When a page is read and when computed
//
//  1. The engine looks up the stored pages of a prompt. A look-up on a slow disk ends after
//     4 s with what it has found, one on a disk that hangs after 5 s with nothing ([Disk]). The last
//     token of a prompt is always computed.
//  2. A chain with lossy pages is tried first where it reaches at least a page further than the exact
//     pages and the slot; no page of it is lossy that is stored exactly. If it does not pay, or there is
//     none, the exact pages are tried.
//  3. The engine describes the pages as a [rates.Chain]: their positions, bytes and tiers. A chain is
//     Indivisible in a model with windows or recurrent state, because these belong to the end of the last
//     page: all of its pages are read or none. Its field Then is a step that follows the reading and takes
//     time as well: llama-server loads the file of a restored slot. A slot of llama-server is replaced
//     for at least 64 tokens that it does not hold, and with a draft model not for the prompt's last 32.
//  4. [Gate.Pays] says how many leading pages are read: as many as make reading them and computing the
//     rest take least, by the costs that were measured so far. Fewer than all must gain 5 ms, or 7 %.
//  5. [Read] reads these pages, [PagesAtOnce] at a time. From a tier whose speed is not known the first
//     page is read alone; kvcache reads one at a time while other slots generate. Each page has a time in
//     which to come, and the Reading ends before a page that does not. It also ends when the speed
//     seen says that the other pages are computed sooner. A file that llama-server reads as a stream has
//     one time limit instead.
//  6. [Gate.Skip] counts the pages that are computed instead, and reads some of them behind the request
//     if their tier may be quick again.
//
// Package rates has the rule by which 4 and 5 decide, and the file of measured costs. With Gate.Always, which
// OLLAMA_KV_TIER_TEST=1 sets for tests, costs decide nothing; the other rules stay.
//
// # What a prompt cost, and why
//
// [Origins] say where the tokens of a prompt came from. An [Inquirer] records the prompt and, behind its
// request, says why tokens were computed: it compares the prompt with the latest ones and asks the store for
// tombstones and for the same text under another identity. Package telemetry/why has the order of causes.
package engine
