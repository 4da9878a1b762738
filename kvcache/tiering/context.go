package tiering

import (
	"fmt"

	"github.com/kvtier/kvtier/internal/sizing"
)

// contextBytes is the size of the K/V of a model's whole context, that of all its slots, as
// pages hold it; 0 where the runner does not say how long the context is.
func contextBytes(m Model) (int64, error) {
	shape, _, err := sizing.ReadShape(m.Path)
	if err != nil {
		return 0, fmt.Errorf("read the model's shape: %w", err)
	}
	if m.Cells < 0 || m.Cells > sizing.CellsMax {
		return 0, fmt.Errorf("a context of %d tokens is not one that can be divided", m.Cells)
	}
	if m.Cells == 0 {
		return 0, nil
	}
	return shape.StoredBytes(int64(m.Cells), m.CacheType), nil
}
