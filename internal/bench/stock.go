package main

import (
	"debug/buildinfo"
	"strings"
)

const (
	// unversioned is the version that an Ollama built without a version reports.
	unversioned = "0.0.0"

	// unknownVersion is recorded where the binary has no record of its version either.
	unknownVersion = "unknown"
)

// builtFrom is the version of a binary in Go's build record: the module's release, or else
// the commit.
func builtFrom(binary string) string {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return unknownVersion
	}
	if release, ok := strings.CutPrefix(info.Main.Version, "v"); ok {
		return release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "commit " + s.Value
		}
	}
	return unknownVersion
}
