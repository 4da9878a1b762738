// Package testmodel writes small language models, with random weights or with weights that recall the prompt,
// so that a test or a benchmark can run a real Ollama on a model of any shape without downloading one. A
// model of 30 million parameters takes well under a second to write.
//
// # Basics
//
//	s := testmodel.Shape{Arch: "qwen3", Layers: 8, Embed: 512, Heads: 8, KVHeads: 4, HeadDim: 64}
//	err := testmodel.Write("model.gguf", s)      // then: ollama create small -f Modelfile
//	modelfile := testmodel.Modelfile("model.gguf")
//	prompt, err := testmodel.Prompt(s, 1000, 1)  // text of exactly 1,000 tokens
//
// The file holds f16 matrices, f32 norms, and a byte-level BPE tokenizer of common English words, so any text
// can be encoded and everything generated is printable. The same Shape, Seed included, gives the same bytes.
//
// # llama.cpp
//
// Ollama up to v0.24 runs these files in its own engine. llama.cpp, which later releases run,
// wants other names and keys in some of them, and some tensors more: [Shape]'s LlamaCpp
// writes those. Ollama's llama-server reads both kinds of most models.
//
// # Architectures
//
// There is at least one for each kind of cache in Ollama's engine; [Architectures] lists them. Layers need all
// tokens before, unless the comment of the architecture's function says otherwise. Later releases alone have
// some, see [Since]; these follow the source of v0.24.0, and phi3 that of llama.cpp.
//
// Windows and chunks have [Shape]'s Window tokens, 64 if it does not say. llama and qwen2 run on Ollama's
// engine with OLLAMA_NEW_ENGINE=1 only, the others always; mllama, and models with a recurrent state or a
// convolution, take one request at a time.
//
// gemma3-vision and mllama are larger than others of their width, by 33 and 16 MB of embeddings: ids of
// tokens around an image are written into the engine. llama4 is text only for that reason. Package e2e
// runs all models that the built Ollama has.
//
// # The weights
//
// With weights drawn carelessly, attention averages thousands of random values to nothing: the output depends
// on the last token alone, and a cache full of garbage goes unnoticed. Here weights are scaled so that
//
//   - attention scores have a standard deviation of [attentionSharpness], which
//     makes each head pick out a few positions anywhere in the context;
//   - attention contributes twice as much variance to the residual stream as
//     the last token's own embedding, so the next token depends on the cache;
//   - logits of printable tokens have a standard deviation of about 1.
//
// Hidden dimension 0 is a constant: embeddings set it to [biasValue], no layer writes to it
// or reads it, and the output matrix uses it to give a logit around -40 to tokens that must not be
// generated: special tokens, unused fillers, control characters, and bytes that are not ASCII (Ollama
// holds a lone one back, which would falsify a time to first token). So num_predict alone
// decides how long an answer is: leave it out and the model never stops.
//
// # The recall model
//
// A random model shows that two answers are the same, not that one is right. [Recall] is a model of the qwen3
// architecture whose weights are set by hand so that there is a right answer: after a prompt that ends in a
// word which occurred once before, the model continues with the tokens that followed the word there, at any
// distance.
//
//	err := testmodel.WriteRecall("recall.gguf", testmodel.Recall{})
//	questions, err := testmodel.RecallPrompts(1, 100000, 1, 50000, 99994)
//	// ask questions[i].Prompt raw and greedily for RecallAnswerTokens tokens:
//	// the text is questions[i].Answer
//
// It is an induction circuit: layer 0 copies a code of the token before ([lookBack]), and
// further layers look up where the current token's code was copied ([lookUp]). With two layers the
// right token leads by 21.0 in log probability. Another lead is a fault even if the answer is right.
//
// A token of the context takes 1 KiB of f16 K/V. 16,384 tokens took the stock CPU engine 27 s
// on two cores; twice the tokens take four times as long.
//
// # Caveats
//
// The text is word salad. The best token leads by 0.2 in the median, but now and then by less than 0.01, so
// greedy text can part wherever rounding differs. On the default shape after 2,000 tokens, log probabilities
// move by up to 0.002 when a prompt is answered again from the cache, by 0.01 with flash attention off, 0.03
// with a q8_0 and 0.3 with a q4_0 cache; changing one early word of the prompt moves them by 0.1.
package testmodel
