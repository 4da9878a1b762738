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
//	trial/     releases that are tried one after another ([Trial]), and their logs
//	go.work    joins src/ and kvtier, so that neither go.mod needs an edit
//
// # The source tree
//
// src/ starts with one commit, tagged upstream, whose message says which
// version it holds and where the bytes came from. The series is applied on top
// with git am, one commit per patch. It must be a repository of its own: git
// apply inside a folder of another repository exits 0 and changes nothing.
//
// What the series is depends on the release: the common patches, then those of
// the overlay folders whose range holds it ([LoadSeries], [Releases]). The
// trailer Releases of a commit says which overlay its patch belongs to.
//
// A file in src/.git remembers which series was applied and which commit that
// left. Commits past it, and uncommitted changes, are a person's own work; no
// operation here discards them unless asked to by name ([Tree.Revert] with
// force).
//
// # Where the bytes come from
//
// Either the Go module, whose checksum is pinned and is verified over the very
// files that are copied, or a git clone of Ollama at the version's tag. The
// module zip has no folder called vendor, hence include/.
package ollamasrc
