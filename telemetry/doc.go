// Package telemetry describes a process's KV tier to people and tools: numbers that grow, the
// state now, and the latest prompts with the cause of each miss.
//
// A runner of a patched Ollama, or the daemon before a llama-server, fills a [Meter] while it
// works, and makes a [Report] of it about once a second. Package telemetry/collect keeps the reports
// of a directory, and adds them up.
//
// [Metrics] lists every series. A series has one meaning, whichever program reports it. A program
// leaves out a series that it cannot know; absent is not 0.
//
// # Privacy
//
// A report has positions, counts and causes. The only text in it is [Words]: tokens around the
// place where a prompt parted from an earlier one. Words are in one file of mode 0600 for each process,
// and leave out every request with kv_store: false.
package telemetry
