package tier

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// sizedBlob is a blob that reports a number of bytes and has none.
type sizedBlob struct {
	Blob
	bytes int64
}

func (b sizedBlob) Info() Info { return Info{Bytes: b.bytes} }

func (b sizedBlob) ReadAt(context.Context, []byte, int64) error { return nil }

// TestManifestOfASizeThatCannotBe: a tier that does not know a size may report -1.
func TestManifestOfASizeThatCannotBe(t *testing.T) {
	for _, bytes := range []int64{-1, 0, MaxManifestBytes, MaxManifestBytes + 1} {
		_, err := DecodeManifest(t.Context(), sizedBlob{bytes: bytes}, pagefile.Key{1})
		require.ErrorIs(t, err, pagefile.ErrDamaged)
	}
}
