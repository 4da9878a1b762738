package diskstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	mu       sync.Mutex
	files    map[pagefile.Name]mapFile
	branches map[tier.Branch]bool
	aside    []mapFile // in quarantine
	ledger   []byte
	closed   bool
}

type mapFile struct {
	content []byte
	used    time.Time
}

func newMapTier() *mapTier {
	return &mapTier{files: make(map[pagefile.Name]mapFile), branches: make(map[tier.Branch]bool)}
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

func (t *mapTier) Find(ctx context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return infos, err
	}
	for i, name := range names {
		if f, ok := t.files[name]; ok {
			infos[i] = f.info(name)
		}
	}
	return infos, nil
}

func (t *mapTier) Open(ctx context.Context, name pagefile.Name, _ bool) (tier.Blob, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f, ok := t.files[name]
	if !ok {
		return nil, tier.ErrNotFound
	}
	return mapBlob{f.info(name), f.content}, nil
}

func (t *mapTier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.check(ctx); err != nil {
		return nil, err
	}
	return &mapUpload{t: t, name: name}, nil
}

// check is begin for methods that use no files.
func (t *mapTier) check(ctx context.Context) error {
	err := t.begin(ctx)
	t.mu.Unlock()
	return err
}

func (t *mapTier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	_, ok, err := t.take(ctx, judged)
	return ok, err
}

// take removes the judged file and returns it.
func (t *mapTier) take(ctx context.Context, judged tier.Info) (mapFile, bool, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return mapFile{}, false, err
	}
	f, ok := t.files[judged.Name]
	if ok && !judged.Used.IsZero() && (!f.used.Equal(judged.Used) || int64(len(f.content)) != judged.Bytes) {
		return mapFile{}, false, tier.ErrReplaced
	}
	delete(t.files, judged.Name)
	return f, ok, nil
}

func (t *mapTier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return err
	}
	f, ok := t.files[name]
	if !ok {
		return tier.ErrNotFound
	}
	f.used = used
	t.files[name] = f
	return nil
}

func (t *mapTier) Quarantine(ctx context.Context, judged tier.Info, _ string) (bool, error) {
	f, ok, err := t.take(ctx, judged)
	if errors.Is(err, tier.ErrReplaced) {
		return false, nil
	}
	if ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.aside = append(t.aside, f)
	}
	return ok, err
}

// list describes the files that a function picks.
func (t *mapTier) list(ctx context.Context, pick func(pagefile.Name) bool) (infos []tier.Info, _ error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for name, f := range t.files {
		if pick(name) {
			infos = append(infos, f.info(name))
		}
	}
	return infos, nil
}

func (t *mapTier) AddBranch(ctx context.Context, b tier.Branch, _ bool) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err == nil {
		t.branches[b] = true
	}
	return err
}

func (t *mapTier) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) (branches []tier.Branch, _ error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	for b := range t.branches {
		if err == nil && b.Fingerprint == fingerprint && bytes.HasPrefix(b.Prefix[:], prefix) {
			branches = append(branches, b)
		}
	}
	return branches, err
}

func (t *mapTier) RemoveBranch(ctx context.Context, b tier.Branch) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err == nil {
		delete(t.branches, b)
	}
	return err
}

func (t *mapTier) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	infos, err := t.list(ctx, func(pagefile.Name) bool { return true })
	fingerprints, shards := make(map[pagefile.Key]bool), make(map[tier.Shard]bool)
	for _, info := range infos {
		fingerprints[info.Fingerprint] = true
		if info.Class != pagefile.ClassManifest {
			shards[tier.ShardOf(info.Name)] = true
		}
	}
	return slices.Collect(maps.Keys(fingerprints)), slices.Collect(maps.Keys(shards)), err
}

func (t *mapTier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	return t.list(ctx, func(n pagefile.Name) bool {
		return n.Class != pagefile.ClassManifest && tier.ShardOf(n) == shard
	})
}

func (t *mapTier) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil || change == nil {
		return t.ledger, err
	}
	content, err := change(t.ledger, "me")
	if err != nil {
		return nil, err
	}
	t.ledger = content
	return content, nil
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

func (u *mapUpload) Seal(context.Context) error { return nil }

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
		return newMapTier()
	})
}

// TestTierOfAnotherModule: pages move down to a tier that is not a directory, and come back
// from there in another process.
func TestTierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	below := newMapTier()
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
		for _, ref := range second.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact {
			buf := make([]byte, layout.Size())
			require.NoError(t, second.Read(ctx, ref, tokens, layout, diskstore.Into{Rows: buf}))
			require.Equal(t, rowsOf(i), buf)
			require.Equal(t, tier.Remote, ref.Tier)
			found++
		}
	}
	require.EqualValues(t, first.Stats().Demoted, found)
	require.NoError(t, second.Flush(ctx))
}

// brokenTier cannot be listed.
type brokenTier struct{ *mapTier }

func (brokenTier) Survey(context.Context) ([]pagefile.Key, []tier.Shard, error) {
	return nil, nil, errors.New("broken")
}

// TestOpenClosesATierOfAnotherModule: a store closes its tier, also a store that was not
// opened. An error names the type of a tier without a root.
func TestOpenClosesATierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	good := diskstore.Options{Fingerprint: pagefile.Key{1}, Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root")}}
	noRoot := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(noRoot, nil, 0o600))
	for name, edit := range map[string]func(*diskstore.Options){
		"two remote tiers": func(o *diskstore.Options) { o.Remote.Root = t.TempDir() },
		"page tokens":      func(o *diskstore.Options) { o.PageTokens = -1 },
		"local root":       func(o *diskstore.Options) { o.Local.Root = noRoot },
	} {
		below, o := newMapTier(), good
		o.RemoteTier = below
		edit(&o)
		_, err := diskstore.Open(ctx, o)
		require.Error(t, err, name)
		require.Equal(t, o.Local.Root != noRoot, errors.Is(err, diskstore.ErrOptions), name)
		require.True(t, below.closed, name)
	}
	unused := newMapTier()
	_, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: diskstore.TierConfig{Root: t.TempDir(), BudgetBytes: -1}, RemoteTier: unused})
	require.ErrorIs(t, err, diskstore.ErrOptions)
	require.True(t, unused.closed)

	below, o := newMapTier(), good
	o.RemoteTier = brokenTier{below}
	s, err := diskstore.Open(ctx, o)
	require.NoError(t, err)
	usage, err := s.Survey(ctx)
	require.NoError(t, err)
	require.ErrorContains(t, usage.RemoteErr, "scan diskstore_test.brokenTier: ")
	require.NoError(t, s.Close())
	require.True(t, below.closed)
}

// TestRootOnATierOfAnotherModule: tools count and collect the tier's pages, and leave alone the
// parts for which they need a directory.
func TestRootOnATierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	below := newMapTier()
	r, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: diskstore.TierConfig{Root: t.TempDir()}, RemoteTier: below, Timeout: time.Minute})
	require.NoError(t, err)
	usage, err := r.Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, usage.RemoteErr)
	all := func(diskstore.FingerprintUsage) bool { return true }
	report, err := r.GC(ctx, diskstore.GCOptions{Fingerprints: all})
	require.NoError(t, err)
	require.NoError(t, report.RemoteErr)
	local, remote := r.Dirs()
	require.NotNil(t, local)
	require.Nil(t, remote)
	drops, err := r.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
	require.ErrorContains(t, err, "quarantine in *diskstore_test.mapTier: ")
	require.Len(t, drops, 1)
	require.Equal(t, tier.Local, drops[0].Tier)
	require.NoError(t, r.Close())
	require.True(t, below.closed)
}
