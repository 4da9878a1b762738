// Command demo shows the use of the KV tier, on this machine, in a few minutes:
//
//	go run ./internal/demo                     a small trained model
//	MODEL=qwen3:4b go run ./internal/demo      one of the user's own
//	MODEL=model.gguf go run ./internal/demo    a file
//	go run ./internal/demo -serve              only serve the model, until Ctrl-C
//
// The command starts the patched Ollama on one slot, has it read a long real text,
// and asks the same question again in four situations: in the same slot, after
// another chat took the slot, after the model was unloaded, and after kill -9 of
// server and runner. For each situation it prints the number of tokens restored from
// disk, the time to first token by the demo's clock (the loading of the model, equal
// with and without the tier, is taken off), and whether the answer is the same.
//
// The trained model knows no chat. Its prompt is text with a table of words, and asks for a
// word of the table; see package trained. The command also asks for the other words, computed
// before the first situation and from pages after the last one, and counts right answers.
//
// # Same output
//
// Every restored answer must equal the answer in the same slot, to the last bit of
// every log probability: all of them compute one token over the same cells. The cold
// run computes the whole prompt in large batches, which round differently, with or
// without the tier. Only the text of the cold run is compared, up to a choice between
// two tokens that rounding alone decides.
//
// When an answer differs, or a prompt that is stored was not restored, the command
// reports it and exits with status 1.
package main
