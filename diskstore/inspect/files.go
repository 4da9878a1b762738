package inspect

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Header reads and checks the header of a page file, for tools. Header returns tier.ErrNotFound,
// pagefile.ErrDamaged, pagefile.ErrMismatch for a newer schema, or an error of the filesystem.
func Header(fs vfs.FS, path string) (*pagefile.Header, error) {
	blob, err := dir.OpenFile(fs, path, pagefile.Name{})
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(context.Background(), blob)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	return h, nil
}

// VerifySections reads and checks a whole page file and returns the damage of each section of
// the file's header, nil for a good section. VerifySections returns the errors of Header for a
// bad header, and pagefile.ErrDamaged for a bad footer.
func VerifySections(ctx context.Context, fsys vfs.FS, path string) (*pagefile.Header, []error, error) {
	blob, err := dir.OpenFile(fsys, path, pagefile.Name{})
	if err != nil {
		return nil, nil, fmt.Errorf("verify %s: %w", path, err)
	}
	defer blob.Close()
	c, err := pagefile.NewChecker(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("verify %s: %w", path, err)
	}
	defer c.Close()
	h, wrong, err := c.CheckSections(ctx, blob)
	if err != nil {
		return h, wrong, fmt.Errorf("verify %s: %w", path, err)
	}
	return h, wrong, nil
}
