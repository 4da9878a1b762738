// Package engine has what is alike wherever K/V is computed: in Ollama's runner (kvcache) and in a
// llama-server (llamatier).
//
// # When a page is read and when computed
//
//  1. The engine looks up the stored pages of a prompt and describes them as a [rates.Chain]: their
//     positions, bytes and tiers.
//  2. [Gate.Pays] says how many leading pages are read: as many as make reading them and computing the
//     rest take least, by the costs that were measured so far.
//  3. [Read] reads these pages, [PagesAtOnce] at a time. From a tier whose speed is not known the first
//     page is read alone. The Reading ends before a page that does not come while reading it can still
//     be quicker than computing it, and before pages that are computed sooner at the speed seen.
//  4. [Gate.Skip] counts the pages that are computed instead, and reads some of them behind the request
//     if their tier may be quick again.
//
// Package rates has the formulas and the file of measured costs. With Gate.Always, for tests, every
// page is read however long that takes.
//
// # What a prompt cost, and why
//
// [Origins] say where the tokens of a prompt came from. An [Inquirer] records the prompt and, behind its
// request, says why tokens were computed: it compares the prompt with the latest ones and asks the store
// for tombstones and for the same text under another identity. Package telemetry/why has the order of
// causes.
package engine
