package llamatier

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
)

// TestASaveThatHadToWait for the file of another slot is made some time later.
func TestASaveThatHadToWait(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.tier.patience.saving = time.Millisecond
	w.ask(ask(prompt(1, 100)), 5)
	w.tier.saver.saving <- struct{}{}
	w.pass()
	require.Len(t, w.timers, 1)
	<-w.tier.saver.saving
	w.tier.patience.saving = time.Minute
	w.idle()
	require.NotEmpty(t, store.Find(t.Context(), diskstore.Prompt{Tokens: prompt(1, 100)}).Exact)
	require.Empty(t, w.timers)
}
