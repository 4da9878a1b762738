// Package version holds kvtier's own version, which the build of the patched
// Ollama, the operator's tool and the page manifests all report.
package version

// Version is kvtier's release, a semantic version without the leading v. It
// becomes the build part of the patched binary's version: Ollama v0.16.1 with
// kvtier 0.1.0 calls itself 0.16.1+kvtier.0.1.0.
const Version = "0.1.0"
