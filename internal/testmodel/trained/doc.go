// Package trained holds a small trained model, for tests that need the structure of learned
// K/V, and for measurements of quality.
//
//	path := trained.Path(t)                       // the model's file, for a test
//	path, err := trained.Write(dir)               // for a command
//	modelfile := trained.Modelfile(path)          // for "ollama create"
//	table, lookUps := trained.Table(1, 12)        // text to place in a prompt, and questions
//
// # The model
//
// qwen3 of 6 layers of 192, 4 query and 2 key/value heads of 64, a feed-forward width of 512,
// 4,096 tokens of an own byte-pair encoding, tied embeddings; f16 matrices, 7 MB. One token
// takes 3 KiB of f16 K/V. It was trained at contexts of up to [ContextTokens].
//
// The model continues plain text such as documents and comments of Go code, and repeats
// values of a table. It knows no chat: use raw prompts, or the template of [Modelfile], which
// passes a prompt through. Its sentences have the form of English and little sense.
//
// # The files
//
// Folder tools/train has the programs that wrote the files here, and their README the commands:
//
//	trained.gguf    the model
//	evaluation.txt  perplexity and look-ups of the weights, by evaluate.py
//	heldout.txt     a table, and text that is no part of the training text
//	questions.json  questions about that table
//	NOTICE          the sources of the training text, with their licences
//
// Another file takes the place of trained.gguf without a change to tests. They ask for bounds
// that any model of this size reaches after some 4 million tokens of training.
package trained
