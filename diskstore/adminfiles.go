package diskstore

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/vfs"
)

// InspectFile reads and checks the header of a page file, for tools. It returns
// ErrNotFound, ErrDamaged, ErrMismatch for a newer schema, or an error of the
// filesystem.
func InspectFile(fs vfs.FS, path string) (*Header, error) {
	blob, err := openFileBlob(fs, path, Name{})
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	defer blob.Close()
	h, err := readHeader(context.Background(), blob)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	return h, nil
}

// VerifySections reads a page file as a check does, and says of each section of
// its header what is wrong with it; nil where nothing is. It returns the errors
// of InspectFile for a header that is no good, and ErrDamaged for a footer.
func VerifySections(ctx context.Context, fsys vfs.FS, path string) (*Header, []error, error) {
	blob, err := openFileBlob(fsys, path, Name{})
	if err != nil {
		return nil, nil, fmt.Errorf("verify %s: %w", path, err)
	}
	defer blob.Close()
	h, err := readHeader(ctx, blob)
	if err != nil {
		return nil, nil, fmt.Errorf("verify %s: %w", path, err)
	}
	s, err := newSweeper(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("verify %s: %w", path, err)
	}
	defer s.close()
	wrong := make([]error, len(h.Sections))
	for i := range h.Sections {
		wrong[i] = s.section(ctx, blob, h, i)
	}
	if err := s.footer(ctx, blob, h); err != nil {
		return h, wrong, fmt.Errorf("verify %s: %w", path, err)
	}
	return h, wrong, nil
}

// ReadManifestFile reads a manifest.json of the given fingerprint, for tools. It
// returns ErrNotFound, ErrDamaged, or an error of the filesystem.
func ReadManifestFile(fsys vfs.FS, path string, fingerprint Key) (*Manifest, error) {
	blob, err := openFileBlob(fsys, path, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return decodeManifest(context.Background(), blob, fingerprint)
}
