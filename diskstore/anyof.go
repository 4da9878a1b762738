package diskstore

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// AnyOf returns the first of keys whose exact full page a tier holds: a page of which the caller
// knows all but one of a few things. AnyOf costs one system call for each key in the local tier,
// and where that has none of them as many in the remote one, which has Options.RemoteTimeout.
func (s *Store) AnyOf(ctx context.Context, keys []pagefile.Key) (key pagefile.Key, found bool) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return key, false
	}
	defer leave()
	names := make([]pagefile.Name, len(keys))
	for i, key := range keys {
		names[i] = s.pages.Page(key)
		if _, fresh := s.ram.Fresh(names[i]); fresh {
			return key, true
		}
		info, err := tier.Stat(ctx, s.disk, names[i])
		switch {
		case err == nil && !s.local.checked.Bad.IsBad(info):
			return key, true
		case err != nil && !errors.Is(err, tier.ErrNotFound):
			s.local.noteTierError(err)
			return key, false
		}
	}
	if s.remote == nil {
		return key, false
	}
	ctx, cancel := context.WithTimeout(ctx, s.lookup.remoteTimeout)
	defer cancel()
	infos, _ := s.guard.Find(ctx, names, false) // the tier counts errors
	for i, info := range infos {
		if info.Key == keys[i] && !s.remote.checked.Bad.IsBad(info) {
			return keys[i], true
		}
	}
	return key, false
}
