// Package tierenv holds the terms that the runner and the tools share: the variables that
// say where pages are kept, and the identity under which pages are kept.
//
// The package needs no engine, so a tool can work on the pages of a server without an Ollama.
// Variables are read as Ollama reads its own: surrounding spaces and quotes are dropped.
package tierenv
