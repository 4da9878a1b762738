package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Commit is the cost of giving cells memory and of taking it back, without the faults of first writes,
// which stock has when a model is loaded.
type Commit struct {
	Commit   measure.Series `json:"commit_ns_per_token" unit:"ns"`
	Uncommit measure.Series `json:"uncommit_ns_per_token" unit:"ns"`
	Share    float64        `json:"share_of_prefill"` // of the time that a token's prefill takes
}

const (
	commitBlock  = 256 // cells that the runner commits together
	commitRounds = 9
)

// measure commits and uncommits all blocks of a context in the K and V of all layers, which nobody writes.
func (c *Commit) measure(shape testmodel.Shape, prefill float64) (err error) {
	pool, err := elastic.New(1<<40, elastic.Host, elastic.Options{NoPopulate: true})
	if err != nil {
		return fmt.Errorf("measure commits: %w", err)
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	cell := uint64(2 * shape.KVHeads * shape.HeadDim) // f16
	var tensors []*elastic.Buffer
	defer func() {
		for _, t := range tensors {
			err = errors.Join(err, t.Free())
		}
	}()
	for range 2 * shape.Layers {
		t, err := pool.Alloc(elasticContext * cell)
		if err != nil {
			return fmt.Errorf("measure commits: %w", err)
		}
		tensors = append(tensors, t)
	}
	each := func(do func(t *elastic.Buffer, offset, size uint64) error) (nanoseconds float64, err error) {
		began := time.Now()
		for at := uint64(0); at < elasticContext; at += commitBlock {
			for _, t := range tensors {
				if err := do(t, at*cell, commitBlock*cell); err != nil {
					return 0, fmt.Errorf("measure commits: %w", err)
				}
			}
		}
		return float64(time.Since(began)) / elasticContext, nil
	}
	for range commitRounds {
		for _, of := range []struct {
			to *measure.Series
			do func(t *elastic.Buffer, offset, size uint64) error
		}{{&c.Commit, (*elastic.Buffer).Commit}, {&c.Uncommit, (*elastic.Buffer).Uncommit}} {
			took, err := each(of.do)
			if err != nil {
				return err
			}
			of.to.Add(took)
		}
	}
	c.Share = (c.Commit.Median + c.Uncommit.Median) * prefill / 1e9
	return nil
}
