// Command llama measures a llama-server with and without kvtier before it, side by side in one run:
//
//	go run ./internal/bench/llama -o docs/bench/llama.json
//	go run ./internal/bench/llama -only ttft -sizes 8192
//
// It runs in the folder of the repository, and needs the folder that
// scripts/build-llama-server fills, and Linux.
//
// # Sides
//
// stock: llama-server alone. ram: llama-server with its cache in memory (--cache-ram). whole:
// llama-server whose slot is saved as one file before it ends, and restored as it starts; no
// time is taken for finding the file. ours: llama-server behind kvtier.
//
// # Parts
//
// ttft: time to first token of a conversation after kill -9, at several lengths.
//
// real: time to first token of a chat about a page of docs/ with SmolLM2-135M-Instruct
// (scripts/llama-clients fetches it), after kill -9.
//
// chat: bytes written to the disk for each new byte of K and V, over a chat of many turns; once
// with the model loaded all the time, and once unloaded after each turn.
//
// switch: many conversations take turns on one slot: time to first token of each, and the memory taken
// beside that of the stock server.
//
// hot: the time that kvtier adds to a request whose prompt the slot holds, the share of time of one
// with a long text, and the speed of long answers.
//
// gaps: the times between tokens of a long answer while chats take turns in another slot,
// beside ram.
//
// drafts: the part of drafted tokens that are right, in a slot that holds the prompt before and in one
// that was restored.
//
// savers: a chat whose server is killed after each answer, beside programs from PyPI that save whole
// slots (scripts/llama-clients installs them), and a server that is never killed.
//
// Sides take turns. Times are by the client's clock. A figure is the median, beside the least
// and the largest. Each prompt but the texts of hot and real has tokens of its own, a list, so that no time of a
// tokenizer is in the figures.
package main
