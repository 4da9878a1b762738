package dir

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxGravesBytes bounds the read of the list of removed pages, whose content is not trusted.
const maxGravesBytes = 1 << 20

var _ tier.Graveyard = (*Tier)(nil)

func (t *Tier) Graves(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	content, err := t.readOwn(ctx, gravesFile, maxGravesBytes)
	if err != nil || change == nil {
		return content, t.opFailed(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	content = change(content)
	return content, t.opFailed(t.writeOwn(gravesFile, content, false))
}
