package kvcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
)

// memStore is a page store in memory that checks every row it is given: a page that was
// copied too early, too late or from the wrong cells is found where it enters.
type memStore struct {
	t testing.TB

	mu      sync.Mutex
	root    diskstore.Key
	pages   map[diskstore.Key]*diskstore.Page
	tails   map[diskstore.Key][]*diskstore.Page
	hold    chan struct{} // Put waits for it when set
	fail    error
	readErr map[int]error // by number of the page
	reads   int
	onRead  func(page int)
	puts    int
	closed  bool
}

func newMemStore(t testing.TB) *memStore {
	s := &memStore{t: t, pages: make(map[diskstore.Key]*diskstore.Page), tails: make(map[diskstore.Key][]*diskstore.Page)}
	s.root[0] = 1
	return s
}

// history is the tokens before a page.
func (s *memStore) history(parent diskstore.Key) []int32 {
	if parent == s.root {
		return nil
	}
	page := s.pages[parent]
	if page == nil {
		return nil
	}
	return append(s.history(page.Parent), page.Tokens...)
}

func (s *memStore) check(page *diskstore.Page) {
	before := s.history(page.Parent)
	if len(before) != int(page.Start) {
		return // its parent was lost; it can never be part of a chain
	}
	for i, sec := range page.Layout.Sections() {
		n := int(sec.RowBytes)
		want := wantRows(section{int(sec.Layer), sec.Kind == diskstore.KindV}, append(slices.Clone(before), page.Tokens...), n)
		rows := page.Layout.Rows(page.Payload, i)
		for j := range page.Tokens {
			require.Equal(s.t, want[int(page.Start)+j], rows[j*n:(j+1)*n], "stored page at %d: row %d of layer %d %v", page.Start, j, sec.Layer, sec.Kind)
		}
	}
}

func (s *memStore) Put(ctx context.Context, p *diskstore.Page) error {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if s.fail != nil {
		return s.fail
	}
	s.check(p)
	page := *p
	page.Payload = slices.Clone(p.Payload)
	key := diskstore.ChainKey(p.Parent, p.Tokens, nil)
	if len(p.Tokens) == 8 {
		s.pages[key] = &page
	} else {
		s.tails[p.Parent] = append(s.tails[p.Parent], &page)
	}
	return nil
}

func (s *memStore) Has(key diskstore.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages[key] != nil
}

func (s *memStore) ChainFrom(_ context.Context, parent diskstore.Key, base int, tokens []int32, _ []diskstore.Media) []diskstore.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refs []diskstore.Ref
	start := 0
	for start+8 <= len(tokens) {
		key := diskstore.ChainKey(parent, tokens[start:start+8], nil)
		if s.pages[key] == nil {
			break
		}
		refs = append(refs, diskstore.Ref{Key: key, Parent: parent, Start: uint32(base + start), Tokens: 8, Stored: 8, Tier: "local", Bytes: 1})
		parent, start = key, start+8
	}
	best := 0
	var tail *diskstore.Page
	for _, candidate := range s.tails[parent] {
		n := 0
		for n < len(candidate.Tokens) && start+n < len(tokens) && candidate.Tokens[n] == tokens[start+n] {
			n++
		}
		if n > best {
			best, tail = n, candidate
		}
	}
	if tail != nil {
		key := diskstore.ChainKey(parent, tail.Tokens, nil)
		refs = append(refs, diskstore.Ref{Key: key, Parent: parent, Start: uint32(base + start), Tokens: best, Stored: len(tail.Tokens), Tail: true, Tier: "local", Bytes: 1})
	}
	return refs
}

func (s *memStore) Read(_ context.Context, ref diskstore.Ref, tokens []int32, layout diskstore.Layout, buf []byte) error {
	s.mu.Lock()
	n := int(ref.Start) / 8
	s.reads++
	onRead, err := s.onRead, s.readErr[n]
	s.mu.Unlock()
	if onRead != nil {
		onRead(n)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	page := s.pages[ref.Key]
	for _, tail := range s.tails[ref.Parent] {
		if ref.Tail && diskstore.ChainKey(ref.Parent, tail.Tokens, nil) == ref.Key {
			page = tail
		}
	}
	if page == nil {
		return diskstore.ErrNotFound
	}
	if !slices.Equal(page.Tokens[:ref.Tokens], tokens) {
		return errors.New("asked for other tokens")
	}
	if layout.Size() != len(page.Payload) {
		return errors.New("asked for another layout")
	}
	copy(buf, page.Payload)
	return nil
}

func (s *memStore) ReadPlaced(ctx context.Context, ref diskstore.Ref, tokens []int32, layout diskstore.Layout, buf []byte) (*diskstore.Placed, error) {
	if err := s.Read(ctx, ref, tokens, layout, buf); err != nil {
		return nil, err
	}
	return nil, diskstore.ErrNotPlaced
}

func (s *memStore) Flush(context.Context) error { return nil }
func (s *memStore) Close() error                { s.closed = true; return nil }
