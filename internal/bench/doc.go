// Command bench measures the gains and the costs of the KV tier, against Ollama
// without it, side by side in one run:
//
//	go run ./internal/bench -o docs/bench/cpu.json
//	go run ./internal/bench -only ttft -sizes 8192 -n 5
//	go run ./internal/bench -show docs/bench/cpu.json
//
// Command bench prints tables and, with -o, writes every measured value as JSON with
// a description of the machine, the versions and the settings.
//
// # Parts
//
// ttft: time to first token at several prompt lengths: by stock Ollama, by ours with an empty store, in
// the same slot, and after kill -9 of server and runner; and the parts of the time of a restored
// prompt, beside a plain read of its files. $KVTIER_STOCK_OLLAMA names an unpatched ollama executable
// beside its lib/ollama; without one the patched executable with the tier off takes its place, and the
// result says so.
//
// chat: bytes written to the local directory for each new byte of K and V, over a chat of many
// turns that follow at once, and that are apart.
//
// cost: prefill and decode speed with the tier on and nothing to restore, against the same executable
// with the tier off, in pairs.
//
// restore: bytes per second of a restore, against reading the same files from start to end with a
// plain read.
//
// slots: the time between tokens of four slots that decode, while a fifth restores a prompt and while
// it is idle.
//
// warm: time to first token of the first prompt after kill -9 and with an empty page cache, with the
// latest conversations read ahead and without. warm takes root.
//
// remote: time to first token of a prompt whose pages are on a remote tier of several speeds, a FUSE
// mount with a limit: as the tier decides from remembered rates, with everything restored, and with
// everything computed. remote needs Linux, root and FUSE, and is left out elsewhere.
//
// moved: time to first token of a chat that left its oldest messages out: computed, with its text
// reused at another position, and by Ollama's own shift.
//
// near: how near reused text comes to computed text in the trained model: divergence of the next
// token's distribution, the same best token, and look-ups in the text that moved.
//
// paged: prefill and decode with paged attention on, against the same with it off.
//
// elastic: the runner's memory, the time to load a model, the speed of prefill and decode, and the
// times of a conversation of ten turns and of eight prompts at a time, with elastic memory on and
// off, for eight slots of 32,768 tokens. elastic needs Linux.
//
// store: the page store alone: restores against fio reading the same files, with an empty and a full
// page cache; compressed ones against decoding alone; saving against fio writing and syncing; lookups
// and opening with a million pages. store needs neither a server nor a model. Without fio, plain reads
// and writes of this command take its place.
//
// # How
//
// All times are by the client's clock; the loading of the model is taken off. Every run of a prompt that
// must be cold has words of its own, which are in no slot and in no page. Sides take turns within each
// repetition. A figure is the median of the repetitions, beside the smallest and the largest. Where root
// rights allow it, restores and reads are also measured with an empty page cache (Linux's drop_caches).
package main
