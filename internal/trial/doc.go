// Package trial shows what kvtier gives, on an Ollama that runs: a long question is asked, asked again
// in the same slot, and asked again after the model was unloaded.
package trial
