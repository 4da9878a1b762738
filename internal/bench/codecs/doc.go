/*
Command codecs measures the encodings of diskstore/encoding on the K/V of a model and a text.

A patched Ollama computes the text and stores its pages. From these pages come the size in each
encoding and the speeds of encoding, of decoding, and of reading page files back. Then the engine restores decoded pages and computes the text that follows:
its probabilities are compared with those after rows that never left the engine.

	go run ./internal/bench/codecs -model model.gguf -text book.txt

codecs.go has the list of encodings. score.go says how far two distributions are apart.

# Conditions

The model needs a context of more than 4,352 tokens and a tokenizer of the type gpt2 or llama, the
text 4,352 tokens. Random weights say nothing about quality. Do not rebuild Ollama while this runs,
some minutes: another engine does not use the pages. On a busy machine -threads 1 is quickest,
because threads of the engine wait by spinning.

The engine runs with flash attention off: on a CPU, ggml's flash attention adds up f16 values in
f16, which moves probabilities after 4,096 tokens further than q8_0 rows do. The engine reads
every page, also where computing would be quicker, and fills cells with NaN before it does.

Probabilities come from the engine's runner, which gives all of a vocabulary, where Ollama's API
gives 20 at most. Tokens beyond topTokens count as one token.

Decoded rows of a lossy encoding are stored under the name of the exact page, in a directory of
their own: the engine needs to know nothing of encodings. Rows of a lossless encoding are compared
with the exact ones byte for byte, so one restore of these serves all.
*/
package main
