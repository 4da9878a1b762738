package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

type ReadOption int

const Gently ReadOption = 1

type Use = func(i int, rows []byte) error

var ErrNotPlaced = errors.New("diskstore: page cannot be used in place")

func (s *Store) Read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...ReadOption) error {
	return s.ReadInto(ctx, ref, tokens, layout, Into{Rows: buf, Gently: slices.Contains(how, Gently)})
}

func (s *Store) ReadSections(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how ...ReadOption) error {
	return s.ReadInto(ctx, ref, tokens, layout, Into{Use: use, Gently: slices.Contains(how, Gently)})
}

func (p *Placed) Close() error { return p.File.Close() }

func (s *Store) ReadPlaced(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how ...ReadOption) (*Placed, error) {
	var placed Placed
	err := s.ReadInto(ctx, ref, tokens, layout, Into{Use: use, Placed: &placed, Gently: slices.Contains(how, Gently)})
	if err == nil && placed.File == nil {
		err = fmt.Errorf("place page %v: %w: %w", ref.Key, placed.Err, ErrNotPlaced)
	}
	if err != nil {
		return nil, err
	}
	return cmp.Or(&placed), nil
}
