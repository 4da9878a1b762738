package move

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// TestLossyPagesNeedLittleMemory asks for a page whose file claims more rows than its length allows.
func TestLossyPagesNeedLittleMemory(t *testing.T) {
	h := &pagefile.Header{Fingerprint: pagefile.Key{1}, FileBytes: 1 << 20}
	b := &Mover{Options: Options{Cold: pagefile.Cold{K: encoding.Q8_0, V: encoding.Q8_0}, Pages: names.Of(h.Fingerprint, true)}}
	for tokens, want := range map[int]bool{8: true, 8 * 8: true, 8*8 + 1: false, 60_000: false} {
		var err error
		h.Layout, err = pagefile.NewLayout([]pagefile.Section{{RowBytes: 1 << 17}}, tokens)
		require.NoError(t, err)
		_, ok := b.coldOf(h)
		require.Equal(t, want, ok, tokens)
	}
}
