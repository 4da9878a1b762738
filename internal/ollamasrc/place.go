package ollamasrc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// place is where a patch stands in a patches folder: among the common patches, in the folder
// of some releases (an overlay), or in that of an optional set.
type place struct {
	folder   string // from the patches folder, with slashes; empty for common patches
	set      string // empty outside of optional sets
	from, to string // the releases that get the patch, both ends included
}

// common is the place of patches for every supported release.
var common = place{from: OldestVersion, to: NewestVersion}

// optionalDir is the folder of a patches folder that has one folder for each optional set.
const optionalDir = "optional"

// overlayName matches the names of folders that are meant to be overlays, well formed or not.
// setName matches the names of optional sets.
var (
	overlayName = regexp.MustCompile(`^v[0-9]`)
	setName     = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// overlay reads a range of supported releases, as the name of a folder and the trailer of its
// patches write it:
//
//	v0.17.1+           v0.17.1 and every later one
//	v0.16.0-v0.17.0    these two and all between them
//	v0.17.5            this one alone
func overlay(name string) (place, error) {
	p := place{folder: name}
	var open, isRange bool
	if p.from, open = strings.CutSuffix(name, "+"); open {
		p.to = NewestVersion
	} else if p.from, p.to, isRange = strings.Cut(name, "-"); !isRange {
		p.to = p.from
	}
	for _, version := range []string{p.from, p.to} {
		if err := CheckVersion(version); err != nil {
			return place{}, fmt.Errorf("%q is not a range of releases, such as v0.17.1+ or v0.16.0-v0.17.0: %w", name, err)
		}
	}
	if semver.Compare(p.from, p.to) > 0 {
		return place{}, fmt.Errorf("%q is not a range of releases: it ends before it begins", name)
	}
	return p, nil
}

func optionalSet(name string) (place, error) {
	if !setName.MatchString(name) {
		return place{}, fmt.Errorf("%q is not the name of an optional set; write it in small letters, such as paged", name)
	}
	return place{folder: path.Join(optionalDir, name), set: name, from: OldestVersion, to: NewestVersion}, nil
}

// contains reports whether a supported release gets the patches.
func (p place) contains(version string) bool {
	return semver.Compare(p.from, version) <= 0 && semver.Compare(version, p.to) <= 0
}

// home is the release from whose trees the patches are written: index lines and line numbers
// differ between releases. home is the default release, else the first that needs no clone,
// else the oldest.
func (p place) home() string {
	for _, version := range append([]string{DefaultVersion}, ModuleVersions()...) {
		if p.contains(version) {
			return version
		}
	}
	return p.from
}

// homeTree describes the trees that the patches are written from.
func (p place) homeTree() string {
	if p.set != "" {
		return p.home() + " with all optional sets"
	}
	return p.home()
}

// comparePlaces is the order in which patches are applied: common patches, overlays by their
// first release, the wider range first, then optional sets by name. In this order patches whose
// home is another release come before those whose home is the tree's own, and nothing stands on
// a set, so that any of them can be left out.
func comparePlaces(a, b place) int {
	return cmp.Or(
		strings.Compare(a.set, b.set),
		semver.Compare(a.from, b.from),
		semver.Compare(b.to, a.to),
		strings.Compare(a.folder, b.folder),
	)
}

// Trailers of a commit's message, which put its patch into the folder of some releases, or of
// an optional set.
const (
	releasesTrailer = "Releases"
	setTrailer      = "Set"
)

var trailerLine = regexp.MustCompile(`(?m)^(` + releasesTrailer + `|` + setTrailer + `): *(.+?) *$`)

// trailer is the line of a commit's message that names the place; empty for common patches.
func (p place) trailer() string {
	switch {
	case p.set != "":
		return setTrailer + ": " + p.set
	case p.folder != "":
		return releasesTrailer + ": " + p.folder
	default:
		return ""
	}
}

// parsePlace reads the trailers of a commit's message.
func parsePlace(message string) (place, error) {
	trailers := trailerLine.FindAllStringSubmatch(message, -1)
	switch {
	case len(trailers) == 0:
		return common, nil
	case len(trailers) > 1:
		return place{}, errors.New("a patch is for some releases or of one optional set, and not of several")
	case trailers[0][1] == setTrailer:
		return optionalSet(trailers[0][2])
	default:
		return overlay(trailers[0][2])
	}
}

// checkTrailer compares the folder with the trailer: with a difference, the next format
// would move the patch.
func (p Patch) checkTrailer() error {
	message, _, _ := bytes.Cut(p.Data, []byte("\n---\n"))
	named, err := parsePlace(string(message))
	if err != nil {
		return fmt.Errorf("its trailer: %w", err)
	}
	switch {
	case named.folder == p.folder:
		return nil
	case named.folder == "":
		return fmt.Errorf("the message of a patch in this folder needs the trailer %q", p.trailer())
	default:
		return fmt.Errorf("its trailer %q puts it into a folder %s", named.trailer(), named.folder)
	}
}
