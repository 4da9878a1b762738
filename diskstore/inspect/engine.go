package inspect

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// checkEngine checks the pages and manifests of an engine, one after another: others wait for the same link. It has
// no other files. The returned error is ctx's; any other error is in the result.
func checkEngine(ctx context.Context, t tier.Tier, where string, opt CheckOptions) (TierCheck, error) {
	c := &checker{tier: tier.Remote, opt: opt, seed: maphash.MakeSeed(), rep: TierCheck{Tier: tier.Remote, Root: where, Problems: make(map[Problem]int)}}
	err := c.runEngine(ctx, t)
	return c.end(ctx, err)
}

func (c *checker) runEngine(ctx context.Context, t tier.Tier) error {
	s, err := pagefile.NewChecker(c.progress)
	if err != nil {
		return err
	}
	defer s.Close()
	fingerprints, shards, err := t.Survey(ctx)
	if err != nil {
		return err
	}
	for _, fingerprint := range fingerprints {
		switch _, err := tier.ReadManifest(ctx, t, fingerprint); {
		case errors.Is(err, pagefile.ErrDamaged):
			c.found(c.object(pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest}), ProblemManifest, err.Error(), nil)
		case err != nil && !errors.Is(err, tier.ErrNotFound):
			return err
		}
	}
	for _, shard := range shards {
		infos, err := t.ListShard(ctx, shard)
		for _, info := range infos {
			c.total += info.Bytes
		}
		for _, info := range infos {
			if err == nil {
				err = c.checkObject(ctx, t, s, info)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// object is the entry of a page of an engine.
func (c *checker) object(name pagefile.Name) dir.Entry {
	return dir.Entry{Name: name, Path: fmt.Sprintf("%s: %v of %v", c.rep.Root, name.Key, name.Fingerprint)}
}

// checkObject reads a page, and a damaged one a second time: where both find the same damage, repair moves it to
// quarantine.
func (c *checker) checkObject(ctx context.Context, t tier.Tier, s *pagefile.Checker, info tier.Info) error {
	if info.Class == pagefile.ClassTail {
		c.rep.Tails++
	} else {
		c.rep.Pages++
	}
	if !c.sampled(info.Key) {
		return nil
	}
	c.rep.Read++
	first := readObject(ctx, t, s, info.Name, false)
	if first == nil || errors.Is(first, tier.ErrNotFound) { // evicted since the listing
		return nil
	}
	if !tier.Doubtful(first) {
		return first
	}
	err := readObject(ctx, t, s, info.Name, true)
	problem, reason := problemOf(err)
	switch {
	case err == nil || errors.Is(err, tier.ErrNotFound):
	case problem == ProblemUnchecked || !tier.SameDamage(first, err):
		c.found(c.object(info.Name), ProblemUnchecked, fmt.Sprintf("%v, then %v", first, err), nil)
	default:
		c.found(c.object(info.Name), problem, err.Error(), func() (string, error) {
			if moved, err := t.Quarantine(ctx, info, reason); err != nil || !moved {
				return "", err
			}
			return "moved to quarantine", nil
		})
	}
	return nil
}

// readObject reads and checks a page, with anew past a cache.
func readObject(ctx context.Context, t tier.Tier, s *pagefile.Checker, name pagefile.Name, anew bool) error {
	blob, err := t.Open(ctx, name, anew)
	if err != nil {
		return err
	}
	return checkBlob(ctx, s, blob, name)
}
