package ollamasrc

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// optionalDir is the folder of a patches folder that has one folder for each optional set.
const optionalDir = "optional"

// setName matches the names of optional sets.
var setName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// place is where a patch stands in a patches folder: among the common patches, in the folder
// of some releases (an overlay), or in that of an optional set. The zero value is common.
type place struct {
	releases Releases
	set      string
}

// folder is the path from the patches folder, with slashes; empty for common patches.
func (p place) folder() string {
	if p.set != "" {
		return path.Join(optionalDir, p.set)
	}
	return p.releases.Name
}

// trailer is the line of a commit's message that names the place; empty for common patches.
func (p place) trailer() string {
	switch {
	case p.set != "":
		return setTrailer + ": " + p.set
	case p.releases.Name != "":
		return releasesTrailer + ": " + p.releases.Name
	default:
		return ""
	}
}

// home describes the trees that patches of a place are written from.
func (p place) home() string {
	if p.set != "" {
		return p.releases.Home() + " with all optional sets"
	}
	return p.releases.Home()
}

// comparePlaces is the order in which patches are applied: common patches, overlays as
// [compareReleases] has them, then optional sets by name. Nothing stands on a set, so that
// any of them can be left out.
func comparePlaces(a, b place) int {
	if order := strings.Compare(a.set, b.set); order != 0 {
		return order
	}
	return compareReleases(a.releases, b.releases)
}

// Trailers of a commit's message, which put its patch into the folder of some releases, or of
// an optional set.
const (
	releasesTrailer = "Releases"
	setTrailer      = "Set"
)

var trailerLine = regexp.MustCompile(`(?m)^(` + releasesTrailer + `|` + setTrailer + `): *(.+?) *$`)

// parsePlace reads the trailers of a commit's message.
func parsePlace(message string) (p place, err error) {
	trailers := trailerLine.FindAllStringSubmatch(message, -1)
	if len(trailers) > 1 {
		return place{}, errors.New("a patch is for some releases or of one optional set, and not of several")
	}
	for _, m := range trailers {
		if m[1] == releasesTrailer {
			p.releases, err = ParseReleases(m[2])
			return p, err
		}
		if p.set = m[2]; !setName.MatchString(p.set) {
			return place{}, fmt.Errorf("%q is not the name of an optional set; write it in small letters, such as paged", p.set)
		}
	}
	return p, nil
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
	case named.folder() == p.folder():
		return nil
	case named.folder() == "":
		return fmt.Errorf("the message of a patch in this folder needs the trailer %q", p.trailer())
	default:
		return fmt.Errorf("its trailer %q puts it into a folder %s", named.trailer(), named.folder())
	}
}

// Sets lists the optional sets of a patches folder, in the order in which they are applied.
func Sets(dir string) ([]string, error) {
	places, err := setPlaces(dir)
	var names []string
	for _, p := range places {
		names = append(names, p.set)
	}
	return names, err
}

// without removes the places of the sets that are left out.
func without(places []place, sets []string) []place {
	return slices.DeleteFunc(places, func(p place) bool { return p.set != "" && slices.Contains(sets, p.set) })
}

// withoutOthers is the value of --without that puts a set back on.
func withoutOthers(leftOut []string, set string) string {
	others := slices.DeleteFunc(slices.Clone(leftOut), func(name string) bool { return name == set })
	if len(others) == 0 {
		return NoSets
	}
	return strings.Join(others, ",")
}

// NoSets is the value of --without that leaves nothing out.
const NoSets = "none"
