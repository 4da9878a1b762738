package valkey

import (
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// listAtOnce is the number of names that the server looks at in one step of a list, about.
const listAtOnce = 512

// each calls do with the elements of a set, in steps. The server may tell an element twice.
func (t *Tier) each(ctx context.Context, what, set string, do func(elements []string) error) error {
	for cursor := uint64(0); ; {
		answers, err := t.do(ctx, what, t.client.B().Sscan().Key(set).Cursor(cursor).Count(listAtOnce).Build())
		if err != nil {
			return err
		}
		step, err := answers[0].AsScanEntry()
		if err != nil {
			return t.failed(ctx, what, err)
		}
		if err := do(step.Elements); err != nil {
			return err
		}
		if cursor = step.Cursor; cursor == 0 {
			return nil
		}
	}
}

// forget removes the names of shards that are empty or evicted, unless they are there again.
const forget script = `
for i = 2, #ARGV do
	if redis.call('EXISTS', KEYS[1] .. ':' .. ARGV[i]) == 0 then redis.call('SREM', KEYS[2], ARGV[i]) end
end`

// Survey lists shards that have a name of a page, also of one that was evicted.
func (t *Tier) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	fingerprints, shards := make(map[pagefile.Key]bool), make(map[tier.Shard]bool)
	err := t.each(ctx, "list shards", t.prefix+"shards", func(names []string) error {
		return t.present(ctx, names, func(s tier.Shard) {
			fingerprints[s.Fingerprint] = true
			if s.Class != pagefile.ClassManifest {
				shards[s] = true
			}
		})
	})
	return slices.Collect(maps.Keys(fingerprints)), slices.Collect(maps.Keys(shards)), err
}

// present calls found for each shard that has a set, and drops the others.
func (t *Tier) present(ctx context.Context, names []string, found func(tier.Shard)) error {
	var cmds []valkey.Completed
	for _, name := range names {
		cmds = append(cmds, t.client.B().Exists().Key(t.prefix+"shard:"+name).Build())
	}
	if len(cmds) == 0 {
		return nil
	}
	answers, err := t.do(ctx, "look for shards", cmds...)
	if err != nil {
		return err
	}
	var gone []string
	for i, name := range names {
		if n, _ := answers[i].AsInt64(); n == 0 {
			gone = append(gone, name)
		} else if shard, ok := parseShard(name); ok {
			found(shard)
		}
	}
	if len(gone) > 0 {
		_, _ = t.do(ctx, "drop names of shards", t.run(forget, []string{t.prefix + "shard", t.prefix + "shards"}, gone...)) // a user may have no right to
	}
	return nil
}

func parseShard(name string) (s tier.Shard, ok bool) {
	class, rest, _ := strings.Cut(name, ":")
	fingerprint, first, _ := strings.Cut(rest, ":")
	key, err := pagefile.ParseKey(fingerprint)
	b, err2 := hex.DecodeString(first)
	if err != nil || err2 != nil || len(b) != 1 {
		return s, false
	}
	for c, of := range classes {
		if of == class {
			s, ok = tier.Shard{Fingerprint: key, Class: c, First: b[0]}, true
		}
	}
	return s, ok
}

// ListShard removes what is left of pages of which the server has evicted a part.
func (t *Tier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	infos := make(map[pagefile.Name]tier.Info)
	err := t.each(ctx, "list a shard", t.prefix+"shard:"+shardName(shard), func(keys []string) error {
		var names, gone []pagefile.Name
		for _, text := range keys {
			if key, err := pagefile.ParseKey(text); err == nil {
				names = append(names, pagefile.Name{Fingerprint: shard.Fingerprint, Class: shard.Class, Key: key})
			}
		}
		pages, err := t.look(ctx, names, "EXISTS")
		if err != nil {
			return err
		}
		for i, p := range pages {
			if p.Found() {
				infos[names[i]] = p.Info
			} else {
				gone = append(gone, names[i])
			}
		}
		if len(gone) > 0 {
			_, _ = t.do(ctx, "drop evicted pages", t.run(drop, t.keys(gone))) // a user may have no right to
		}
		return nil
	})
	return slices.Collect(maps.Values(infos)), err
}
