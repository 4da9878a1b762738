package ollamasrc

import (
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// Releases is a range of supported releases, both ends included, as the name of
// an overlay folder and the trailer of its patches write it:
//
//	v0.17.1+           v0.17.1 and every later one
//	v0.16.0-v0.17.0    these two and all between them
//	v0.17.5            this one alone
//
// The zero value stands for every supported release, as for patches outside of an overlay.
type Releases struct {
	Name     string // empty for the zero value
	from, to string
}

// ParseReleases reads the name of a range, which must not be empty.
func ParseReleases(name string) (Releases, error) {
	r := Releases{Name: name}
	var open, isRange bool
	if r.from, open = strings.CutSuffix(name, "+"); open {
		r.to = NewestVersion
	} else if r.from, r.to, isRange = strings.Cut(name, "-"); !isRange {
		r.to = r.from
	}
	for _, version := range []string{r.from, r.to} {
		if err := CheckVersion(version); err != nil {
			return Releases{}, fmt.Errorf("%q is not a range of releases, such as v0.17.1+ or v0.16.0-v0.17.0: %w", name, err)
		}
	}
	if semver.Compare(r.from, r.to) > 0 {
		return Releases{}, fmt.Errorf("%q is not a range of releases: it ends before it begins", name)
	}
	return r, nil
}

// rangeName matches the names of folders that are meant to be overlays, well formed or
// not.
var rangeName = regexp.MustCompile(`^v[0-9]`)

func (r Releases) bounds() (from, to string) {
	if r.Name == "" {
		return OldestVersion, NewestVersion
	}
	return r.from, r.to
}

// Contains reports whether a supported version is in the range.
func (r Releases) Contains(version string) bool {
	from, to := r.bounds()
	return semver.Compare(from, version) <= 0 && semver.Compare(version, to) <= 0
}

// Home is the release from whose tree patches for this range are written: index lines and
// line numbers differ between releases. Home is the default release, else the first that
// needs no clone, else the oldest.
func (r Releases) Home() string {
	if r.Contains(DefaultVersion) {
		return DefaultVersion
	}
	for _, version := range ModuleVersions() {
		if r.Contains(version) {
			return version
		}
	}
	from, _ := r.bounds()
	return from
}

// compareReleases is the order in which patches are applied: patches for all releases, then
// ranges by their first release, the wider range first. In this order, patches whose home is
// another release come before patches whose home is the tree's own release.
func compareReleases(a, b Releases) int {
	if a.Name == "" || b.Name == "" {
		return len(a.Name) - len(b.Name)
	}
	if order := semver.Compare(a.from, b.from); order != 0 {
		return order
	}
	if order := semver.Compare(b.to, a.to); order != 0 {
		return order
	}
	return strings.Compare(a.Name, b.Name)
}
