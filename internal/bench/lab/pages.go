package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// PageTokens is the default page size of a server, in tokens.
const PageTokens = 256

// pageExt ends the names of page files, but not of files that are being written.
const pageExt = ".kvp"

// settlePoll is the time between two looks of Settle.
const settlePoll = 5 * time.Millisecond

// Pages lists the page files below a root, tails included, in the order of
// their paths.
func Pages(root string) ([]string, error) {
	var pages []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a temporary file that got its name meanwhile
			return nil
		case err != nil:
			return err
		case entry.Type().IsRegular() && filepath.Ext(path) == pageExt:
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pages: %w", err)
	}
	return pages, nil
}

// PagesOf is the number of pages of a prompt of so many tokens, the incomplete last one
// included.
func PagesOf(tokens int) int { return (tokens + PageTokens - 1) / PageTokens }

// Settle waits until the store holds at least `pages` pages, which a SIGKILL cannot lose any
// more.
func (l *Lab) Settle(ctx context.Context, pages int) error {
	ticker := time.NewTicker(settlePoll)
	defer ticker.Stop()
	for {
		written, err := Pages(l.options.Root)
		if err != nil {
			return err
		}
		if len(written) >= pages {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d pages to be written, %d are: %w", pages, len(written), context.Cause(ctx))
		}
	}
}
