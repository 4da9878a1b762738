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
	// Name is the path from the patches folder, with slashes:
	// 0001-subject.patch, or v0.17.1+/0001-subject.patch in an overlay.
	Name     string
	Releases Releases
	Data     []byte
}

// Series holds the patches of a patches folder for one release, in the order of application:
// the common patches, then those of the overlays whose range has the release.
type Series struct {
	Dir     string
	Patches []Patch
}

// patchName matches the file names of git format-patch. Other files (a README, a patch kept
// under another name) are not part of a series.
var patchName = regexp.MustCompile(`^[0-9]{4}-.+\.patch$`)

// LoadSeries reads the series of a patches folder for a release. A missing folder is
// an empty series.
func LoadSeries(dir, version string) (Series, error) {
	s := Series{Dir: dir}
	folders, err := overlays(dir)
	if err != nil {
		return Series{}, fmt.Errorf("reading the patch series: %w", err)
	}
	for _, releases := range append([]Releases{{}}, folders...) {
		if !releases.Contains(version) {
			continue
		}
		patches, err := readPatches(dir, releases)
		if err != nil {
			return Series{}, err
		}
		s.Patches = append(s.Patches, patches...)
	}
	return s, nil
}

// overlays lists the folders of a patches folder that are named by a range, in
// the order in which they are applied.
func overlays(dir string) ([]Releases, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []Releases
	for _, entry := range entries {
		if !entry.IsDir() || !rangeName.MatchString(entry.Name()) {
			continue
		}
		releases, err := ParseReleases(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("the folder %s: %w", Rel(filepath.Join(dir, entry.Name())), err)
		}
		found = append(found, releases)
	}
	slices.SortFunc(found, compareReleases)
	return found, nil
}

// readPatches reads the patches of one folder.
func readPatches(dir string, releases Releases) ([]Patch, error) {
	entries, err := os.ReadDir(filepath.Join(dir, releases.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the patch series: %w", err)
	}
	var patches []Patch
	for _, entry := range entries {
		if !patchName.MatchString(entry.Name()) {
			continue
		}
		p := Patch{Name: path.Join(releases.Name, entry.Name()), Releases: releases}
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

// releasesTrailer is the line of a commit's message that puts its patch into an
// overlay.
const releasesTrailer = "Releases"

var trailerLine = regexp.MustCompile(`(?m)^` + releasesTrailer + `: *(.+?) *$`)

// checkTrailer compares the folder with the trailer: with a difference, the next format
// would move the patch.
func (p Patch) checkTrailer() error {
	message, _, _ := bytes.Cut(p.Data, []byte("\n---\n"))
	trailer := ""
	if m := trailerLine.FindSubmatch(message); m != nil {
		trailer = string(m[1])
	}
	switch {
	case trailer == p.Releases.Name:
		return nil
	case trailer == "":
		return fmt.Errorf("the message of a patch in this folder needs the trailer %q", releasesTrailer+": "+p.Releases.Name)
	default:
		return fmt.Errorf("its trailer %q puts it into a folder %s", releasesTrailer+": "+trailer, trailer)
	}
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
