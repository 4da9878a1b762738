// Package ollamasrc turns a released Ollama into the one kvtier needs: it
// materializes the source of a supported version, applies the patch series and
// builds the result.
//
// # The build directory
//
// Everything lives under one folder, [Layout.Dir], and nothing is written
// outside it (only [Tree.Format] writes the patches folder, because that is its
// purpose):
//
//	src/       Ollama's source, a git repository of its own
//	include/   C headers that the Go module of Ollama lacks
//	cmake/     CMake's build tree
//	lib/       the compiled backends (CPU variants, CUDA)
//	bin/       the patched ollama
//	log/       the full output of each build step
//	trial/     releases that are tried one after another ([Try]), and their logs
//	go.work    joins src/ and kvtier, so that neither go.mod needs an edit
//
// # The source tree
//
// src/ starts with one commit, tagged upstream, whose message says which
// version it holds and where the bytes came from. The series is applied on top
// with git am, one commit per patch. src/ must be a repository of its own: git
// apply inside a folder of another repository exits 0 and changes nothing.
//
// The series depends on the release: the common patches come first, then the patches
// of the overlay folders whose range has the release, then those of the optional sets that
// are not left out ([LoadSeries], [Sets]). The trailer Releases of a commit names
// the overlay of its patch, the trailer Set its optional set.
//
// A file in src/.git records the applied series, the last commit of the series and the sets
// that were left out.
// Commits after that one, and uncommitted changes, are a person's own work. No
// operation here discards such work unless asked to by name ([Tree.Revert] with
// force).
//
// # Origin
//
// The source comes from the Go module, whose checksum is pinned and is verified over
// the copied files themselves, or from a git clone of Ollama at the version's tag.
// The module zip has no folder called vendor, hence include/.
package ollamasrc
