// Package llamatest starts a llama-server, a stock one or ours before it, talks to it and kills
// it. It works on Linux.
package llamatest
