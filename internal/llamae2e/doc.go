// Package llamae2e tests kvtier before llama-server from outside: before a stock llama-server, and in
// the llama-server's place of a stock Ollama. scripts/build-llama-server builds all three.
package llamae2e
