package ollamasrc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// Patch is one file of a series.
type Patch struct {
	// Name is the path from the patches folder, with slashes: 0001-subject.patch, or
	// v0.17.1+/0001-subject.patch in an overlay, optional/paged/0001-subject.patch in a set.
	Name string
	Data []byte

	place
}

// Series holds the patches of a patches folder for one release, in the order of application:
// the common patches, then those of the overlays whose range has the release, then those of
// optional sets.
type Series struct {
	Dir     string
	Patches []Patch
	Without []string // the optional sets that are left out
}

// patchName matches the file names of git format-patch. Other files (a README, a patch kept
// under another name) are not part of a series.
var patchName = regexp.MustCompile(`^[0-9]{4}-.+\.patch$`)

// LoadSeries reads the series of a patches folder for a release, without some optional sets.
// A missing folder is an empty series.
func LoadSeries(dir, version string, leftOut []string) (Series, error) {
	s := Series{Dir: dir, Without: leftOut}
	places, err := overlayPlaces(dir)
	if err != nil {
		return Series{}, fmt.Errorf("reading the patch series: %w", err)
	}
	sets, err := setPlaces(dir)
	if err != nil {
		return Series{}, fmt.Errorf("reading the patch series: %w", err)
	}
	places = append(append([]place{{}}, places...), without(sets, leftOut)...)
	for _, p := range places {
		if !p.releases.Contains(version) {
			continue
		}
		patches, err := readPatches(dir, p)
		if err != nil {
			return Series{}, err
		}
		s.Patches = append(s.Patches, patches...)
	}
	return s, nil
}

// overlayPlaces lists the folders of a patches folder that are named by a range, in the order
// in which they are applied.
func overlayPlaces(dir string) ([]place, error) {
	names, err := folders(dir, rangeName)
	if err != nil {
		return nil, err
	}
	var found []place
	for _, name := range names {
		releases, err := ParseReleases(name)
		if err != nil {
			return nil, fmt.Errorf("the folder %s: %w", Rel(filepath.Join(dir, name)), err)
		}
		found = append(found, place{releases: releases})
	}
	slices.SortFunc(found, comparePlaces)
	return found, nil
}

// setPlaces lists the folders of the optional sets, in the order in which they are applied.
func setPlaces(dir string) ([]place, error) {
	names, err := folders(filepath.Join(dir, optionalDir), setName)
	var found []place
	for _, name := range names {
		found = append(found, place{set: name})
	}
	slices.SortFunc(found, comparePlaces)
	return found, err
}

// folders lists the folders of dir whose names match. A missing dir has none.
func folders(dir string, name *regexp.Regexp) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() && name.MatchString(entry.Name()) {
			found = append(found, entry.Name())
		}
	}
	return found, nil
}

// readPatches reads the patches of one folder.
func readPatches(dir string, at place) ([]Patch, error) {
	entries, err := os.ReadDir(filepath.Join(dir, filepath.FromSlash(at.folder())))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the patch series: %w", err)
	}
	var patches []Patch
	for _, entry := range entries {
		if !patchName.MatchString(entry.Name()) {
			continue
		}
		p := Patch{Name: path.Join(at.folder(), entry.Name()), place: at}
		file := filepath.Join(dir, filepath.FromSlash(p.Name))
		if p.Data, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("reading the patch series: %w", err)
		}
		if !bytes.HasPrefix(p.Data, []byte("From ")) {
			return nil, fmt.Errorf("%s is not a patch as git format-patch writes it (its first line does not begin with From)", Rel(file))
		}
		if err := p.checkTrailer(); err != nil {
			return nil, fmt.Errorf("%s: %w", Rel(file), err)
		}
		patches = append(patches, p)
	}
	return patches, nil
}

// Digest is a hash of the patches and their names.
func (s Series) Digest() string {
	h := sha256.New()
	for _, p := range s.Patches {
		fmt.Fprintf(h, "%s %d\n", p.Name, len(p.Data))
		h.Write(p.Data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (s Series) paths() []string {
	paths := make([]string, len(s.Patches))
	for i, p := range s.Patches {
		paths[i] = filepath.Join(s.Dir, filepath.FromSlash(p.Name))
	}
	return paths
}
