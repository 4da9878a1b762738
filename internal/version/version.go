// Package version is kvtier's own version, as its programs and the patched Ollama report it.
package version

import (
	"runtime/debug"
	"strings"

	"golang.org/x/mod/module"
)

const (
	// Release is the next release of this source, a semantic version without the leading v.
	Release = "0.1.0"

	// Unreleased is the version of a build whose commit is unknown.
	Unreleased = Release + "-devel"

	// hashDigits is the number of digits of a commit's hash in a version.
	hashDigits = 7
)

// OfCommit is the version of a build from a commit without a release's tag. dirty: files
// differ from the commit.
func OfCommit(hash string, dirty bool) string {
	v := Unreleased + "-g" + hash[:min(len(hash), hashDigits)]
	if dirty {
		v += "-dirty"
	}
	return v
}

// String is the version of the running program: the tag that it was built from, or the
// commit, as far as Go recorded either.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Unreleased
	}
	return Of(info)
}

// Of is the version of the program with these notes of Go.
func Of(info *debug.BuildInfo) string {
	var hash string
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			hash = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	tag := info.Main.Version
	switch {
	case strings.HasPrefix(tag, "v") && !module.IsPseudoVersion(tag) && !dirty:
		return strings.TrimPrefix(tag, "v")
	case hash != "":
		return OfCommit(hash, dirty)
	case module.IsPseudoVersion(tag): // go install of a commit
		if hash, err := module.PseudoVersionRev(tag); err == nil {
			return OfCommit(hash, false)
		}
	}
	return Unreleased
}
