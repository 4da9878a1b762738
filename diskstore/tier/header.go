package tier

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// ReadHeader opens a page, reads its header and checks the page's name. ReadHeader returns
// ErrNotFound, pagefile.ErrDamaged, pagefile.ErrMismatch, or an error of the tier.
func ReadHeader(ctx context.Context, t Tier, name pagefile.Name) (*pagefile.Header, error) {
	blob, err := t.Open(ctx, name, false)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := h.CheckName(name); err != nil {
		return nil, err
	}
	return h, nil
}
