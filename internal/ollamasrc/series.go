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

// NoSets is the value of --without that leaves nothing out.
const NoSets = "none"

// patchName matches the file names of git format-patch. Other files (a README, a patch kept
// under another name) are not part of a series.
var patchName = regexp.MustCompile(`^[0-9]{4}-.+\.patch$`)

// LoadSeries reads the series of a patches folder for a release, without some optional sets.
// A missing folder is an empty series.
func LoadSeries(dir, version string, leftOut []string) (Series, error) {
	s := Series{Dir: dir, Without: leftOut}
	all, err := places(dir)
	for _, p := range all {
		if err == nil && p.contains(version) && !slices.Contains(leftOut, p.set) {
			err = s.read(p)
		}
	}
	if err != nil {
		return Series{}, fmt.Errorf("reading the patch series: %w", err)
	}
	return s, nil
}

// Sets lists the optional sets of a patches folder, in the order in which they are applied.
func Sets(dir string) ([]string, error) {
	all, err := places(dir)
	var names []string
	for _, p := range all {
		if p.set != "" {
			names = append(names, p.set)
		}
	}
	return names, err
}

// places lists the places that a patches folder has, in the order in which they are applied.
func places(dir string) ([]place, error) {
	found := []place{common}
	for _, kind := range []struct {
		dir   string
		name  *regexp.Regexp
		place func(name string) (place, error)
	}{
		{dir, overlayName, overlay},
		{filepath.Join(dir, optionalDir), setName, optionalSet},
	} {
		entries, err := os.ReadDir(kind.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			if !entry.IsDir() || !kind.name.MatchString(entry.Name()) {
				continue
			}
			p, err := kind.place(entry.Name())
			if err != nil {
				return nil, fmt.Errorf("the folder %s: %w", Rel(filepath.Join(kind.dir, entry.Name())), err)
			}
			found = append(found, p)
		}
	}
	slices.SortFunc(found, comparePlaces)
	return found, nil
}

// read adds the patches of one place.
func (s *Series) read(at place) error {
	entries, err := os.ReadDir(s.path(at.folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if !patchName.MatchString(entry.Name()) {
			continue
		}
		p := Patch{Name: path.Join(at.folder, entry.Name()), place: at}
		file := s.path(p.Name)
		if p.Data, err = os.ReadFile(file); err != nil {
			return err
		}
		if !bytes.HasPrefix(p.Data, []byte("From ")) {
			return fmt.Errorf("%s is not a patch as git format-patch writes it (its first line does not begin with From)", Rel(file))
		}
		if err := p.checkTrailer(); err != nil {
			return fmt.Errorf("%s: %w", Rel(file), err)
		}
		s.Patches = append(s.Patches, p)
	}
	return nil
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

// path is the file of a name in the patches folder.
func (s Series) path(name string) string { return filepath.Join(s.Dir, filepath.FromSlash(name)) }

func (s Series) paths() []string {
	paths := make([]string, len(s.Patches))
	for i, p := range s.Patches {
		paths[i] = s.path(p.Name)
	}
	return paths
}
