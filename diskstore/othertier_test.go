package diskstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// mapTier is a tier in a map, as another module could write one.
type mapTier struct {
	mu     sync.Mutex
	files  map[pagefile.Name]mapFile
	ledger []byte
	locked bool
	closed bool
}

type mapFile struct {
	content []byte
	used    time.Time
}

func (f mapFile) info(name pagefile.Name) tier.Info {
	n := int64(len(f.content))
	return tier.Info{Name: name, Bytes: n, Physical: n, Used: f.used}
}

// begin begins an operation, which ends with the unlocking of mu.
func (t *mapTier) begin(ctx context.Context) error {
	t.mu.Lock()
	if t.closed {
		return tier.ErrClosed
	}
	return ctx.Err()
}

func (t *mapTier) Stat(ctx context.Context, name pagefile.Name) (tier.Info, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return tier.Info{}, err
	}
	f, ok := t.files[name]
	if !ok {
		return tier.Info{}, tier.ErrNotFound
	}
	return f.info(name), nil
}

func (t *mapTier) Leading(ctx context.Context, names []pagefile.Name) (found []tier.Info, _ error) {
	for _, name := range names {
		info, err := t.Stat(ctx, name)
		if err != nil {
			break
		}
		found = append(found, info)
	}
	return found, nil
}

func (t *mapTier) Open(_ context.Context, name pagefile.Name) (tier.Blob, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.files[name]
	if !ok {
		return nil, tier.ErrNotFound
	}
	return mapBlob{f.info(name), f.content}, nil
}

func (t *mapTier) Reopen(ctx context.Context, name pagefile.Name) (tier.Blob, error) {
	return t.Open(ctx, name)
}

func (t *mapTier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	return &mapUpload{t: t, name: name}, err
}

func (t *mapTier) Persist(context.Context, pagefile.Name) error { return nil }

func (t *mapTier) Remove(_ context.Context, judged tier.Info) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.files[judged.Name]
	if ok && !judged.Used.IsZero() && !f.used.Equal(judged.Used) {
		return false, tier.ErrReplaced
	}
	delete(t.files, judged.Name)
	return ok, nil
}

func (t *mapTier) Touch(_ context.Context, name pagefile.Name, used time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.files[name]
	if !ok {
		return tier.ErrNotFound
	}
	f.used = used
	t.files[name] = f
	return nil
}

func (t *mapTier) Quarantine(ctx context.Context, judged tier.Info, _ string) (bool, error) {
	return t.Remove(ctx, judged)
}

func (t *mapTier) EmptyQuarantine(context.Context) (int64, error) { return 0, nil }

// list describes the files that pick selects.
func (t *mapTier) list(pick func(pagefile.Name) bool) (infos []tier.Info) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, f := range t.files {
		if pick(name) {
			infos = append(infos, f.info(name))
		}
	}
	return infos
}

func (t *mapTier) Tails(_ context.Context, fingerprint, parent pagefile.Key) ([]tier.Info, error) {
	return t.list(func(n pagefile.Name) bool {
		return n.Class == pagefile.ClassTail && n.Fingerprint == fingerprint && n.Parent == parent
	}), nil
}

func (t *mapTier) SyncRemoved(context.Context, []pagefile.Name) error { return nil }

func (t *mapTier) Shards(ctx context.Context) ([]tier.Shard, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen := make(map[tier.Shard]bool)
	var shards []tier.Shard
	for _, info := range t.list(func(n pagefile.Name) bool { return n.Class != pagefile.ClassManifest }) {
		if shard := tier.ShardOf(info.Name); !seen[shard] {
			seen[shard] = true
			shards = append(shards, shard)
		}
	}
	return shards, nil
}

func (t *mapTier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return t.list(func(n pagefile.Name) bool {
		return n.Class != pagefile.ClassManifest && tier.ShardOf(n) == shard
	}), nil
}

func (t *mapTier) Aside(context.Context) (tier.Aside, error) {
	return tier.Aside{Living: map[string]bool{"me": true}, Held: map[string]bool{"me": true}}, nil
}

func (t *mapTier) Account(_ context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if change == nil {
		return t.ledger, nil
	}
	content, err := change(t.ledger, "me")
	if err != nil {
		return nil, err
	}
	t.ledger = content
	return content, nil
}

func (t *mapTier) Fingerprints(context.Context) (keys []pagefile.Key, _ error) {
	seen := make(map[pagefile.Key]bool)
	for _, info := range t.list(func(pagefile.Name) bool { return true }) {
		if !seen[info.Fingerprint] {
			seen[info.Fingerprint] = true
			keys = append(keys, info.Fingerprint)
		}
	}
	return keys, nil
}

func (t *mapTier) DropFingerprint(_ context.Context, fingerprint pagefile.Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.files, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	return nil // no directory exists without files
}

func (t *mapTier) Space(context.Context) (tier.Space, error) {
	return tier.Space{Total: 1 << 40, Free: 1 << 39}, nil
}

func (t *mapTier) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (t *mapTier) Left() int64 { return 0 }

func (t *mapTier) Lock(context.Context) (func(), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.locked {
		return nil, tier.ErrLocked
	}
	t.locked = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.locked = false
	}, nil
}

func (t *mapTier) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

type mapBlob struct {
	info    tier.Info
	content []byte
}

func (b mapBlob) Info() tier.Info { return b.info }
func (b mapBlob) Size() int64     { return b.info.Bytes }
func (b mapBlob) Close()          {}

func (b mapBlob) ReadAt(_ context.Context, p []byte, off int64) error {
	if off+int64(len(p)) > b.info.Bytes {
		return io.ErrUnexpectedEOF
	}
	copy(p, b.content[off:])
	return nil
}

type mapUpload struct {
	t       *mapTier
	name    pagefile.Name
	content bytes.Buffer
}

func (u *mapUpload) Write(_ context.Context, p []byte) error {
	u.content.Write(p)
	return nil
}

func (u *mapUpload) Written() int64 { return int64(u.content.Len()) }

func (u *mapUpload) Commit(_ context.Context, used time.Time) (tier.Committed, error) {
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	old, replaced := u.t.files[u.name]
	f := mapFile{bytes.Clone(u.content.Bytes()), used}
	u.t.files[u.name] = f
	return tier.Committed{Info: f.info(u.name), Replaced: replaced, Freed: int64(len(old.content))}, nil
}

func (u *mapUpload) Abort() {}

func TestContractOfATierOfAnotherModule(t *testing.T) {
	tiertest.Contract(t, func(*testing.T) tier.Tier {
		return &mapTier{files: make(map[pagefile.Name]mapFile)}
	})
}

// TestTierOfAnotherModule: pages move down to a tier that is not a directory, and come back
// from there in another process.
func TestTierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	below := &mapTier{files: make(map[pagefile.Name]mapFile)}
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: 4096}}, 4)
	require.NoError(t, err)
	fingerprint := pagefile.Key{1}
	open := func() *diskstore.Store {
		s, err := diskstore.Open(ctx, diskstore.Options{
			Fingerprint: fingerprint, PageTokens: 4, RemoteTier: below,
			Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root"), BudgetBytes: 8 * 28 << 10},
		})
		require.NoError(t, err)
		return s
	}
	rowsOf := func(i int32) []byte {
		return bytes.Repeat([]byte(fmt.Sprintf("%04d", i)), layout.Size()/4)
	}
	first := open()
	const pages = 40
	for i := range int32(pages) {
		page := &pagefile.Page{Parent: fingerprint, Tokens: []int32{i, 1, 2, 3}, Layout: layout, Payload: rowsOf(i)}
		require.NoError(t, first.Put(ctx, page))
	}
	require.NoError(t, first.Flush(ctx))
	require.Positive(t, first.Stats().Demoted)
	require.NoError(t, first.Close())
	require.True(t, below.closed)

	below.closed = false // another process has opened the tier
	second := open()
	defer func() { require.NoError(t, second.Close()) }()
	found := 0
	for i := range int32(pages) {
		tokens := []int32{i, 1, 2, 3}
		for _, ref := range second.Chain(ctx, tokens, nil) {
			buf := make([]byte, layout.Size())
			require.NoError(t, second.Read(ctx, ref, tokens, layout, buf))
			require.Equal(t, rowsOf(i), buf)
			require.Equal(t, tier.Remote, ref.Tier)
			found++
		}
	}
	require.EqualValues(t, first.Stats().Demoted, found)
	require.NoError(t, second.Flush(ctx))

	_, err = diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint, RemoteTier: below,
		Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root")}, Remote: diskstore.TierConfig{Root: t.TempDir()},
	})
	require.ErrorIs(t, err, diskstore.ErrOptions)
}
