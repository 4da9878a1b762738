// Package machine is the inventory of a machine on which Ollama runs: executables, systemd services,
// Docker's containers, servers and their variables, mounts, and model files. Doctor and install read it.
//
// Each answer follows from a [System], which is this machine ([Here]) or a fake (package machinetest).
// Nothing is changed. Nothing that other people wrote is trusted: files are opened without following a link
// and without waiting, and every list and text has a bound.
package machine
