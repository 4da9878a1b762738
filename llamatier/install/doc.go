// Package install puts kvtier before the llama-server of an Ollama that is
// already there, and takes it away again.
//
// Ollama runs the file llama-server in its folder of libraries. There are two ways to run
// another program in its place:
//
//	service  For a systemd service, a drop-in mounts kvtier over that file. Only
//	         the service sees the mount. The folder itself does not change, so Ollama's own
//	         updater, which deletes the folder, neither removes the mount nor meets a file
//	         of ours. The folder is mounted a second time elsewhere, without the mount over
//	         llama-server: the real llama-server runs there, beside its libraries.
//	file     Elsewhere the file is renamed to llama-server-real, and kvtier gets
//	         its name. At every moment llama-server is one program or the other. An update of
//	         Ollama puts the stock file back.
//
// A Plan lists the steps of an installation or a removal before anything is changed. Each
// step can be repeated: a plan that was broken off is made and carried out again.
package install
