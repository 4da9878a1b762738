package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/bench/measure"
)

// rounds is the number of repetitions. In each, all encodings take their turns.
const rounds = 9

// section is the rows of a section, and the rows as stored.
type section struct {
	rows []byte
	of   pagefile.Section

	id     encoding.ID
	stored []byte
}

// sections returns the sections of all pages.
func (k *kept) sections() (all []section) {
	for _, p := range k.pages {
		for i, s := range p.Layout.Sections() {
			all = append(all, section{rows: p.Layout.Rows(p.Payload, i), of: s})
		}
	}
	return all
}

// measureRates measures sizes, and speeds on this goroutine.
func (r *run) measureRates(ctx context.Context) error {
	r.results = make([]Result, len(r.codecs))
	all := r.kept.sections()
	total := r.kept.rows()
	encodes, decodes := make([]measure.Series, len(r.codecs)), make([]measure.Series, len(r.codecs))
	buf := make([]byte, largest(all))
	for range rounds {
		for i, c := range r.codecs {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := encodeAll(c, all, &encodes[i], total); err != nil {
				return err
			}
			stored, err := r.decodeAll(c, all, buf, &decodes[i], total)
			if err != nil {
				return err
			}
			res := &r.results[i]
			*res = Result{
				Encoding: c.name, Lossless: !c.lossy, Ratio: float64(total) / float64(stored),
				Encode: encodes[i].Median, Decode: decodes[i].Median,
			}
		}
	}
	return nil
}

// encodeAll encodes all sections and adds the speed, unless all rows are stored as they are.
func encodeAll(c codec, sections []section, speed *measure.Series, total int64) error {
	raw := true
	took, err := measure.OnCore(func() error {
		for i := range sections {
			s := &sections[i]
			s.id, s.stored = c.encode(s.rows, s.of)
			raw = raw && s.id == encoding.Raw
		}
		return nil
	})
	if err == nil && !raw {
		speed.Add(rate(total, took))
	}
	return err
}

// decodeAll decodes all sections, adds the speed, and returns their stored size. The rows of a
// lossless encoding must come back.
func (r *run) decodeAll(c codec, sections []section, buf []byte, speed *measure.Series, total int64) (stored int64, err error) {
	took, err := measure.OnCore(func() error {
		for i := range sections {
			if err := r.decode(&sections[i], buf[:len(sections[i].rows)]); err != nil {
				return fmt.Errorf("decode a section in %s: %w", c.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	speed.Add(rate(total, took))
	for i := range sections {
		s := &sections[i]
		if s.id == encoding.Raw {
			stored += int64(len(s.rows))
			continue
		}
		stored += int64(len(s.stored))
		if c.lossy {
			continue
		}
		if err := r.decode(s, buf[:len(s.rows)]); err != nil {
			return 0, fmt.Errorf("decode a section in %s: %w", c.name, err)
		}
		if !bytes.Equal(buf[:len(s.rows)], s.rows) {
			return 0, fmt.Errorf("decode a section in %s: layer %d %v differs from the rows", c.name, s.of.Layer, s.of.Kind)
		}
	}
	return stored, nil
}

// decode fills rows from a section.
func (r *run) decode(s *section, rows []byte) error {
	stored := s.stored
	if s.id == encoding.Raw {
		stored = s.rows
	}
	return r.pages.Decode(s.id, stored, rows)
}

// rate is in GB per second.
func rate(n int64, took time.Duration) float64 { return float64(n) / took.Seconds() / 1e9 }

// largest is the size of the largest section.
func largest(all []section) (n int) {
	for _, s := range all {
		n = max(n, len(s.rows))
	}
	return n
}
