// Package segment lists the KV memory that processes of this machine hold, and sets its limits. It
// speaks kvcached's protocol, so that processes with vLLM, SGLang or Ollama look the same: a file
// of 24 bytes in /dev/shm for each pool, with the limit, the used memory and the memory that is
// kept for reuse. A tool writes the limit; the process obeys within its next round.
//
// Readers take a shared lock on the file and writers an exclusive one. A process may be stopped
// while it holds the lock: nobody here waits for it longer than a moment.
//
// Processes that use package elastic hold a lock on NAME.lock as long as they live. That tells
// which process has a segment, and which segments dead processes have left.
package segment
