package diskstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// PutVectors keeps vectors of a page or tail of the local tier beside it: they take room as pages do, and go
// with the page. PutVectors evicts nothing. It returns tier.ErrNoSpace without room, tier.ErrNotFound
// without the page, or an error of the filesystem.
func (r *Root) PutVectors(ctx context.Context, page pagefile.Name, content []byte) error {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	reserve := r.s.local.book.Reserve
	if r.s.opt.Local.BudgetBytes == 0 {
		reserve = r.s.maker.Free // leaves a part of the filesystem free
	}
	room, err := reserve(ctx, int64(len(content)))
	if errors.Is(err, ledger.ErrNotCounted) {
		err = fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	}
	if err != nil {
		return fmt.Errorf("keep vectors of page %v: %w", page.Key, err)
	}
	defer room.Cancel()
	physical, err := r.s.disk.PutVectors(ctx, page, content)
	if err != nil {
		room.Wasted(int64(len(content)))
		return fmt.Errorf("keep vectors of page %v: %w", page.Key, err)
	}
	room.Finish(physical)
	return nil
}
