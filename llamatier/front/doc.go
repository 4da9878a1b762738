// Package front is the program that stands in the place of llama-server: kvtier, under that name.
//
// The front starts a daemon, which is the same program, passes signals on, and ends as it ends. The
// daemon runs the real llama-server behind a socket, answers clients in its place, and keeps its slots
// in a page store. A daemon that cannot start leaves its place to the real llama-server.
package front
