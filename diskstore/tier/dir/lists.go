package dir

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxGravesBytes bounds the read of the list of removed pages, whose content is not trusted.
const maxGravesBytes = 1 << 20

var _ tier.Graveyard = (*Tier)(nil)

func (t *Tier) Graves(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	return t.changeOwn(ctx, gravesFile, maxGravesBytes, change)
}

// changeOwn replaces the content of one of the store's own files, of at most limit bytes, by the
// result of change, and returns the new content. With a nil change the file is only read. The change
// may be lost in a power cut.
func (t *Tier) changeOwn(ctx context.Context, base string, limit int64, change func([]byte) []byte) ([]byte, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	content, err := t.readOwn(ctx, base, limit)
	if err != nil || change == nil {
		return content, t.opFailed(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	content = change(content)
	return content, t.opFailed(t.writeOwn(base, content, false))
}
