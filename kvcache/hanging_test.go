package kvcache

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// hangingStore is a memStore in which reads of one page hang, except those of a probe. A restore that
// waits for such a page gives it up at once, with the method after in the place of time.After.
type hangingStore struct {
	*memStore

	mu     sync.Mutex
	page   int            // number of the page whose reads hang, -1 for none
	before int            // reads of earlier pages that are under way
	hung   int            // reads that hang
	due    chan time.Time // the wait of a restore, nil if it ends by itself
	given  int            // waits that were ended
}

// hang makes reads of a page hang that begin from now on.
func (s *hangingStore) hang(page int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = page
}

// after returns a channel that ends a restore's wait when the awaited page hangs.
func (s *hangingStore) after(time.Duration) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = make(chan time.Time, 1)
	due := s.due
	s.endWaitLocked()
	return due
}

// endWaitLocked ends the wait when no page before the one that hangs is being read.
func (s *hangingStore) endWaitLocked() {
	if s.due != nil && s.hung > 0 && s.before == 0 {
		s.due <- time.Time{}
		s.due = nil
		s.given++
	}
}

// ended notes the end of a read, of an earlier page or of one that hung.
func (s *hangingStore) ended(early, hung bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hung {
		s.hung--
	}
	if early {
		s.before--
		s.endWaitLocked()
	}
}

func (s *hangingStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	page := int(ref.Start) / 8
	_, probe := ctx.Deadline()
	rows := slices.ContainsFunc(layout.Sections(), func(sec pagefile.Section) bool { return sec.Kind != pagefile.KindCell })
	s.mu.Lock()
	early, hangs := page < s.page, page == s.page && rows && !probe
	if early {
		s.before++
	}
	if hangs {
		s.hung++
		s.endWaitLocked()
	}
	s.mu.Unlock()
	defer s.ended(early, hangs)
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.memStore.Read(ctx, ref, tokens, layout, into)
}

// TestAWaitEndsAfterEarlierReads, also if it began while such a read, of another restore, was
// under way.
func TestAWaitEndsAfterEarlierReads(t *testing.T) {
	s := &hangingStore{page: 1, hung: 1, before: 1}
	due := s.after(time.Hour)
	require.Empty(t, due)
	s.ended(true, false)
	require.Len(t, due, 1)
}

// watch ends the test process with the stacks of all goroutines when stop is not called in time:
// goroutines that wait for each other would end it much later, without a word about this test.
func watch(t testing.TB, within time.Duration, doing func() string) (stop func()) {
	timer := time.AfterFunc(within, func() {
		stacks := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s: stuck for %v: %s\n\n%s", t.Name(), within, doing(), stacks[:runtime.Stack(stacks, true)]))
	})
	return func() { timer.Stop() }
}
