// Package listen answers GET /metrics, and shows the web page on a listener of its own.
//
// A patched Ollama puts [Metrics] on its own port. [Serve] opens the listener that OLLAMA_KV_METRICS_ADDR
// names, in a patched ollama serve, in the daemon before a llama-server and in kvtier collect. Several of
// them may have the same address and root: one has the port, and another one takes it when that one ends.
//
// Answers hold no text of prompts: states have none, no metric is made of it, and package page removes it.
// Any failure is an answer with an error or a log line, and reaches no request of the engine.
package listen
