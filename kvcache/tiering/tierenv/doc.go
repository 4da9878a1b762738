// Package tierenv is what tiering's runner and its tools have to agree on: the variables
// that say where pages are kept, and the identity under which they are kept there.
//
// It needs no engine, so that a tool can work on the pages of a server without being one.
// Variables are read as Ollama reads its own: surrounding spaces and quotes are dropped.
package tierenv
