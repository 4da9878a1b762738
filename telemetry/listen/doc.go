// Package listen answers GET /metrics, and shows the web page on a listener of its own.
//
// A patched Ollama puts [Metrics] on its own port. [Serve] opens the listener that
// OLLAMA_KV_METRICS_ADDR names, in the process that holds the collector's lock: several daemons
// of one setup have the same address, and the lock decides which of them has the port.
//
// Answers hold no text of prompts: [Serve] removes words from a state before anything sees it.
// Any failure is an answer with an error or a log line, and reaches no request of the engine.
package listen
