// Package trial shows what kvtier gives, on a server that runs: a long question is asked, asked again
// in the same slot, and asked again after the server forgot it. That is an Ollama that unloads the
// model, or a llama-server alone that is killed and started again.
package trial
