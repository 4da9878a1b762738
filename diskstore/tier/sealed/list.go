package sealed

import (
	"bytes"
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// ownerShards is the number of shards in which a fingerprint without a manifest is asked for a file.
	ownerShards = 3
	// maxOwners bounds the fingerprints whose keys are remembered.
	maxOwners = 4096
)

// Survey lists what keys here have sealed. A name does not tell its key: any key opens it, to something else.
// So the header of one file of each fingerprint is read, once.
func (t *sealedTier) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	sealed, all, err := t.inner.Survey(ctx)
	if err != nil {
		return nil, nil, err
	}
	shardsOf := make(map[pagefile.Key][]tier.Shard)
	for _, s := range all {
		shardsOf[s.Fingerprint] = append(shardsOf[s.Fingerprint], s)
	}
	var fingerprints []pagefile.Key
	var shards []tier.Shard
	seen, seenShards := make(map[pagefile.Key]bool), make(map[tier.Shard]bool)
	for _, f := range sealed {
		k, err := t.owner(ctx, f, shardsOf[f])
		if err != nil {
			return nil, nil, err
		}
		if k == nil {
			continue
		}
		n := k.of(k.openFingerprint(f))
		if !seen[n.plain] {
			seen[n.plain] = true
			fingerprints = append(fingerprints, n.plain)
		}
		for _, s := range shardsOf[f] {
			if s = n.openShard(s); !seenShards[s] {
				seenShards[s] = true
				shards = append(shards, s)
			}
		}
	}
	return fingerprints, shards, nil
}

// owner returns the key that has sealed a fingerprint's files, nil where it is unknown here.
func (t *sealedTier) owner(ctx context.Context, sealed pagefile.Key, shards []tier.Shard) (*key, error) {
	t.mu.Lock()
	k, known := t.owners[sealed]
	t.mu.Unlock()
	if known {
		return k, nil
	}
	k, found, err := t.ask(ctx, sealed, shards[:min(len(shards), ownerShards)])
	if err != nil || !found {
		return nil, err
	}
	if k == nil {
		t.foreign()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.owners) >= maxOwners {
		clear(t.owners)
	}
	t.owners[sealed] = k
	return k, nil
}

// ask reads the headers of the manifest and of a file in each shard, until one has a key of here, and reports
// whether there was any file.
func (t *sealedTier) ask(ctx context.Context, sealed pagefile.Key, shards []tier.Shard) (k *key, found bool, err error) {
	k, found, err = t.keyOf(ctx, pagefile.Name{Fingerprint: sealed, Class: pagefile.ClassManifest})
	for _, shard := range shards {
		if k != nil || err != nil {
			break
		}
		var infos []tier.Info
		infos, err = t.inner.ListShard(ctx, shard)
		if len(infos) > 0 && err == nil {
			found = true
			k, _, err = t.keyOf(ctx, infos[0].Name)
		}
	}
	return k, found, err
}

// keyOf returns the key in a file's header, nil for a file without a key of here.
func (t *sealedTier) keyOf(ctx context.Context, sealed pagefile.Name) (k *key, found bool, err error) {
	blob, err := t.inner.Open(ctx, sealed, false)
	if errors.Is(err, tier.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer blob.Close()
	begin := make([]byte, headerBytes-saltBytes)
	if err := pagefile.ReadFull(ctx, blob, begin, 0); err != nil && !errors.Is(err, pagefile.ErrDamaged) {
		return nil, true, err
	}
	for _, k := range t.keys {
		if bytes.Equal(begin, k.begin()) {
			return k, true, nil
		}
	}
	return nil, true, nil
}

// ListShard lists a file that two keys have sealed as that of the current key.
func (t *sealedTier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	var infos []tier.Info
	seen := make(map[pagefile.Name]bool)
	for _, k := range t.keys {
		n := k.of(shard.Fingerprint)
		sealed, err := t.inner.ListShard(ctx, n.shard(shard))
		if err != nil {
			return nil, err
		}
		for _, info := range sealed {
			name := pagefile.Name{Fingerprint: n.plain, Class: info.Class, Key: n.files[info.Class].open(info.Key)}
			if !seen[name] {
				seen[name] = true
				infos = append(infos, opened(info, name))
			}
		}
	}
	return infos, nil
}

func (t *sealedTier) AddBranch(ctx context.Context, branch tier.Branch, durable bool) error {
	return t.inner.AddBranch(ctx, t.keys[0].of(branch.Fingerprint).branch(branch), durable)
}

// Branches asks with all bytes of a prefix or with the first, because the others are permuted together.
func (t *sealedTier) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	var branches []tier.Branch
	seen := make(map[tier.Branch]bool)
	for _, k := range t.keys {
		n := k.of(fingerprint)
		var whole pagefile.Key
		copy(whole[:], prefix)
		ask := n.prefixes.seal(whole)
		most := len(ask)
		if len(prefix) < most {
			most = min(1, len(prefix))
		}
		sealed, err := t.inner.Branches(ctx, n.fingerprint, ask[:most])
		for _, b := range sealed {
			if b = n.openBranch(b); bytes.HasPrefix(b.Prefix[:], prefix) && !seen[b] {
				seen[b] = true
				branches = append(branches, b)
			}
		}
		if err != nil {
			return branches, err
		}
	}
	return branches, nil
}

func (t *sealedTier) RemoveBranch(ctx context.Context, branch tier.Branch) error {
	for _, k := range t.keys {
		if err := t.inner.RemoveBranch(ctx, k.of(branch.Fingerprint).branch(branch)); err != nil {
			return err
		}
	}
	return nil
}
