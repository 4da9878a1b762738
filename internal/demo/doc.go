// Command demo shows what the KV tier is for, on this machine, in a few minutes:
//
//	go run ./internal/demo                     a model with random weights
//	MODEL=qwen3:4b go run ./internal/demo      one of the user's own
//	MODEL=model.gguf go run ./internal/demo    a file
//	go run ./internal/demo -serve              only serve it, until Ctrl-C
//
// It starts the patched Ollama on one slot, has it read a long real text, and
// asks the same thing again in four situations: in the same slot, after another
// chat took the slot, after the model was unloaded, and after kill -9 of server
// and runner. For each it prints how many tokens came back from the disk, the
// time to first token by its own clock (the loading of the model, which is the
// same with and without the tier, taken off), and whether the answer is the same.
//
// # Same output
//
// The answer in the same slot is the one the others must equal, to the last bit
// of every log probability: all of them compute one token over the same cells.
// The cold run computes the whole prompt in large batches, which rounds
// differently, with or without the tier; of it the text is compared, up to a
// choice between two tokens that rounding alone decides.
//
// If an answer differs, or nothing was restored where it should have been, the
// command says so and exits with status 1.
package main
