package tiertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Map is a tier in a map, as another module could write one. A test may use its fields while no method runs.
type Map struct {
	mu     sync.Mutex
	Files  map[pagefile.Name]MapFile
	Noted  map[tier.Branch]bool
	Aside  []MapFile // in quarantine
	Ledger []byte
	Closed bool
}

// MapFile is a file of a Map.
type MapFile struct {
	Content []byte
	Used    time.Time
}

// NewMap returns an empty Map.
func NewMap() *Map {
	return &Map{Files: make(map[pagefile.Name]MapFile), Noted: make(map[tier.Branch]bool)}
}

func (f MapFile) info(name pagefile.Name) tier.Info {
	n := int64(len(f.Content))
	return tier.Info{Name: name, Bytes: n, Physical: n, Used: f.Used}
}

// begin begins an operation, which ends with the unlocking of mu.
func (t *Map) begin(ctx context.Context) error {
	t.mu.Lock()
	if t.Closed {
		return tier.ErrClosed
	}
	return ctx.Err()
}

func (t *Map) Find(ctx context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return infos, err
	}
	for i, name := range names {
		if f, ok := t.Files[name]; ok {
			infos[i] = f.info(name)
		}
	}
	return infos, nil
}

func (t *Map) Open(ctx context.Context, name pagefile.Name, _ bool) (tier.Blob, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f, ok := t.Files[name]
	if !ok {
		return nil, tier.ErrNotFound
	}
	return mapBlob{f.info(name), f.Content}, nil
}

func (t *Map) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.check(ctx); err != nil {
		return nil, err
	}
	return &mapUpload{t: t, name: name}, nil
}

// check is begin for methods that use no files.
func (t *Map) check(ctx context.Context) error {
	err := t.begin(ctx)
	t.mu.Unlock()
	return err
}

func (t *Map) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	_, ok, err := t.take(ctx, judged)
	return ok, err
}

// take removes the judged file and returns it.
func (t *Map) take(ctx context.Context, judged tier.Info) (MapFile, bool, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return MapFile{}, false, err
	}
	f, ok := t.Files[judged.Name]
	if ok && !judged.Used.IsZero() && (!f.Used.Equal(judged.Used) || int64(len(f.Content)) != judged.Bytes) {
		return MapFile{}, false, tier.ErrReplaced
	}
	delete(t.Files, judged.Name)
	return f, ok, nil
}

func (t *Map) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return err
	}
	f, ok := t.Files[name]
	if !ok {
		return tier.ErrNotFound
	}
	f.Used = used
	t.Files[name] = f
	return nil
}

func (t *Map) Quarantine(ctx context.Context, judged tier.Info, _ string) (bool, error) {
	f, ok, err := t.take(ctx, judged)
	if errors.Is(err, tier.ErrReplaced) {
		return false, nil
	}
	if ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.Aside = append(t.Aside, f)
	}
	return ok, err
}

// list describes the files that a function picks.
func (t *Map) list(ctx context.Context, pick func(pagefile.Name) bool) (infos []tier.Info, _ error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for name, f := range t.Files {
		if pick(name) {
			infos = append(infos, f.info(name))
		}
	}
	return infos, nil
}

func (t *Map) AddBranch(ctx context.Context, b tier.Branch, _ bool) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err == nil {
		t.Noted[b] = true
	}
	return err
}

func (t *Map) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) (branches []tier.Branch, _ error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	for b := range t.Noted {
		if err == nil && b.Fingerprint == fingerprint && bytes.HasPrefix(b.Prefix[:], prefix) {
			branches = append(branches, b)
		}
	}
	return branches, err
}

func (t *Map) RemoveBranch(ctx context.Context, b tier.Branch) error {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err == nil {
		delete(t.Noted, b)
	}
	return err
}

func (t *Map) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
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

func (t *Map) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	return t.list(ctx, func(n pagefile.Name) bool {
		return n.Class != pagefile.ClassManifest && tier.ShardOf(n) == shard
	})
}

func (t *Map) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	err := t.begin(ctx)
	defer t.mu.Unlock()
	if err != nil || change == nil {
		return t.Ledger, err
	}
	content, err := change(t.Ledger, "me")
	if err != nil {
		return nil, err
	}
	t.Ledger = content
	return content, nil
}

func (t *Map) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Closed = true
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
	t       *Map
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
	old, replaced := u.t.Files[u.name]
	f := MapFile{bytes.Clone(u.content.Bytes()), used}
	u.t.Files[u.name] = f
	return tier.Committed{Info: f.info(u.name), Replaced: replaced, Freed: int64(len(old.Content))}, nil
}

func (u *mapUpload) Abort() {}
