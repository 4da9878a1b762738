package checked

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// TestFarDamageIsProven: a file of a far tier goes to quarantine if two reads find the same damage. A network that
// changes bytes makes others each time, and the file stays, for everybody.
func TestFarDamageIsProven(t *testing.T) {
	for name, test := range map[string]struct {
		far, differ, moved bool
	}{
		"the same damage": {far: true, moved: true},
		"other damage":    {far: true, differ: true},
		"on a local disk": {differ: true, moved: true},
	} {
		t.Run(name, func(t *testing.T) {
			below := tiertest.NewMap()
			tiertest.Upload(t, below, tiertest.Page(1), []byte("page"), time.Now())
			var failed []error
			moved := false
			p := New(below, Options{
				Name: tier.Remote, Far: test.far, Log: slog.New(slog.DiscardHandler), Now: time.Now, Failed: func(err error) { failed = append(failed, err) },
				Quarantine: func(context.Context, tier.Info, string) (bool, error) { moved = true; return true, nil },
				Gone:       func(tier.Info) {}, Damaged: new(atomic.Uint64), Mismatched: new(atomic.Uint64), Unreadable: new(atomic.Uint64),
			})
			reads := 0
			_, err := p.Open(t.Context(), tiertest.Page(1), func(tier.Blob) error {
				if reads++; test.differ {
					return pagefile.Damaged("sum is %d", reads)
				}
				return pagefile.Damaged("sum is 7")
			})
			require.Error(t, err)
			require.Equal(t, 2, reads)
			_, err = p.Open(t.Context(), tiertest.Page(1), func(tier.Blob) error { reads++; return nil })
			require.Equal(t, test.differ && test.far, errors.Is(err, tier.ErrNotFound), "it is not used here")
			require.Equal(t, test.moved, moved)
			require.Equal(t, test.moved, len(failed) == 0, "it is said")
		})
	}
}
