package kvcache

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// countingStore counts concurrent reads. With together, the first read waits for the second.
type countingStore struct {
	*memStore
	together bool
	second   chan struct{}

	mu            sync.Mutex
	reads         int
	running, most int
	gentle        int
}

func (s *countingStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.mu.Lock()
	s.reads++
	s.running++
	s.most = max(s.most, s.running)
	if into.Gently {
		s.gentle++
	}
	n := s.reads
	s.mu.Unlock()
	switch {
	case s.together && n == 1:
		<-s.second
	case s.together && n == 2:
		close(s.second)
	}
	err := s.memStore.Read(ctx, ref, tokens, layout, into)
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	return err
}

// A restore reads one page at a time while other slots compute, and otherwise several.
func TestARestoreLeavesProcessorsToOthers(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{})
	prompt := tokenRange(1, 60)
	r.run(r.slots[0], prompt, nil, true)
	r.tiered.Close()

	alone := &countingStore{memStore: store, together: true, second: make(chan struct{})}
	r = newFakeRunner(t, alone, 2, 128, Options{})
	require.Equal(t, 59, r.load(r.slots[0], prompt, true).Held)
	require.Greater(t, alone.most, 1)
	require.Zero(t, alone.gentle)

	beside := &countingStore{memStore: store}
	r = newFakeRunner(t, beside, 2, 128, Options{})
	r.load(r.slots[1], tokenRange(2, r.batch+9), true)
	require.True(t, r.build())
	waits, landed := r.watchIdle(), make(chan struct{})
	go func() {
		defer close(landed)
		<-waits     // the restore found the other slot computing
		r.build()   // and does so until its end
		r.compute() // lets the restore begin
	}()
	require.Equal(t, 59, r.load(r.slots[0], prompt, true).Held)
	<-landed
	require.Equal(t, 1, beside.most)
	require.Equal(t, beside.reads, beside.gentle)
	r.cache.requireRows(t, 0, prompt[:59])
}
