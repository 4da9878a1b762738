// Package digests identifies the code and the weights that a server computes with: SHA-256 of
// large files, remembered between starts.
package digests
