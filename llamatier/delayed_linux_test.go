package llamatier

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestASaveThatHadToWait for the file of another slot is made some time later.
func TestASaveThatHadToWait(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.tier.patience.saving = time.Millisecond
	w.ask(ask(prompt(1, 100)), 5)
	w.tier.saver.saving <- struct{}{}
	w.pass()
	require.Len(t, w.timers, 1)
	<-w.tier.saver.saving
	w.tier.patience.saving = time.Minute
	w.idle()
	require.NotEmpty(t, w.found(prompt(1, 100)))
	require.Empty(t, w.timers)
}
