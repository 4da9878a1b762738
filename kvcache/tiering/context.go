package tiering

import (
	"fmt"
	"os"

	"github.com/kvtier/kvtier/internal/sizing"
)

// contextBytes is the size of the K/V of a model's whole context, that of all its slots, as
// pages hold it; 0 where the runner does not say how long the context is.
func contextBytes(m Model) (int64, error) {
	f, err := os.Open(m.Path)
	if err != nil {
		return 0, fmt.Errorf("read the model's shape: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read the model's shape: %w", err)
	}
	head, err := sizing.ReadHeader(f, info.Size())
	if err != nil {
		return 0, fmt.Errorf("read the model's shape from %s: %w", m.Path, err)
	}
	shape, err := sizing.ShapeOf(head)
	if err != nil {
		return 0, fmt.Errorf("read the model's shape from %s: %w", m.Path, err)
	}
	if m.Cells < 0 || m.Cells > sizing.CellsMax {
		return 0, fmt.Errorf("a context of %d tokens is not one that can be divided", m.Cells)
	}
	if m.Cells == 0 {
		return 0, nil
	}
	return shape.StoredBytes(int64(m.Cells), m.CacheType), nil
}
