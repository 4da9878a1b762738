package valkey

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/engines"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// openAt opens a tier in a server. The test closes it.
func openAt(t *testing.T, address string) *Tier {
	t.Helper()
	tr, err := Open(address, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// notDisk hides that a guard has the methods of a Disk, whatever is below.
type notDisk struct{ tier.Tier }

func TestContract(t *testing.T) {
	_, socket := engines.Valkey(t)
	open := func(t *testing.T) tier.Tier {
		return openAt(t, "unix://"+socket+"?prefix="+newID())
	}
	t.Run("bare", func(t *testing.T) { tiertest.Contract(t, open) })
	t.Run("guarded", func(t *testing.T) {
		tiertest.Contract(t, func(t *testing.T) tier.Tier {
			return notDisk{guard.New(open(t), time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})}
		})
	})
}
