// Package process runs llama-server behind a daemon, in place of the llama-server that a
// program such as Ollama wants to start.
//
// There are three processes:
//
//	front   the process that the program starts, and ends with SIGKILL. It only waits.
//	daemon  answers in place of llama-server, and outlives the front by as long as it takes
//	        to store everything that must not be lost.
//	engine  the real llama-server. Its output goes where the front's goes.
//
// The front holds one end of a pipe. When the front dies, however it dies, the daemon reads
// the pipe's end, flushes, ends the engine and ends itself. The engine holds the front's
// output, so a program that reads the output to its end waits for the flush as well. The front
// ends as the engine did: with the same status, or by the same signal.
//
// On Linux
//
//   - the front ends when the program dies, because nobody reads the front's output any more;
//   - the engine is killed when the daemon dies;
//   - the engine starts with SIGTERM, SIGINT and SIGHUP blocked: a service manager sends these to
//     all processes of a service, and the engine must live until the daemon has stored its slots.
//
// Elsewhere the engine has a process group of its own, so that signals from a terminal do not reach it.
package process
