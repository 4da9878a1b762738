package s3

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// usesEvery is the time after which uses are written, and after which those of others are read again.
	usesEvery = 5 * time.Minute
	// usesMost bounds the uses of one object, to 600 kB. Uses of other pages are not noted meanwhile.
	usesMost = 1 << 13
	// foldedMost bounds the uses that a collector keeps, to 10 MB: the latest.
	foldedMost = 1 << 17
	// notesMost and noteBytesMost bound the objects of one fold: the oldest. The next fold takes others.
	notesMost     = 1 << 10
	noteBytesMost = 32 << 20
	// writeUsesIn bounds the time in which uses are written, and leaveIn does at the end of the process.
	writeUsesIn = 30 * time.Second
	leaveIn     = 2 * time.Second

	// useBytes is the length of a use: fingerprint, key, class, ns since 1970.
	useBytes = 32 + 32 + 1 + 8
)

// uses are times of last use, by the store's clock, later than what the recency of a file tells.
type uses struct {
	mu      sync.Mutex
	fresh   map[pagefile.Name]time.Time                // of this process, not written yet
	all     map[tier.Shard]map[pagefile.Name]time.Time // of all processes, as read last
	read    time.Time                                  // when; zero for never
	clock   *time.Timer                                // writes fresh uses; nil without any
	aged    map[pagefile.Name]bool                     // files to copy onto themselves when they are used
	renewed []pagefile.Name                            // those that were used
}

// Note notes a use. A timer writes it, with others.
func (t *Tier) Note(name pagefile.Name, used time.Time) bool {
	u, used := &t.uses, used.Add(t.ahead())
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.closed.Load() {
		return false
	}
	if was, known := u.fresh[name]; was.After(used) || !known && len(u.fresh) >= usesMost {
		return true
	}
	if u.fresh == nil {
		u.fresh = make(map[pagefile.Name]time.Time)
	}
	u.fresh[name] = used
	if u.aged[name] && len(u.renewed) < usesMost {
		delete(u.aged, name)
		u.renewed = append(u.renewed, name)
	}
	if u.clock == nil {
		u.clock = time.AfterFunc(usesEvery, func() {
			ctx, cancel := context.WithTimeout(context.Background(), writeUsesIn)
			defer cancel()
			t.writeUses(ctx)
		})
	}
	return true
}

// stop keeps the timer from writing.
func (u *uses) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.clock != nil {
		u.clock.Stop()
	}
}

// seen completes what a listing tells of a file.
func (t *Tier) seen(f *file, name pagefile.Name) {
	f.Name = name
	f.Used = t.uses.later(f.Info)
	if f.found && t.Renew > 0 && t.now().Add(t.ahead()).Sub(f.made) > t.Renew {
		t.uses.age(name)
	}
}

// age notes a file that is copied onto itself when it is used.
func (u *uses) age(name pagefile.Name) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.aged == nil || len(u.aged) >= usesMost {
		u.aged = make(map[pagefile.Name]bool)
	}
	u.aged[name] = true
}

// renew copies a file onto itself, which makes it new. A file that another process has renewed stays.
func (t *Tier) renew(ctx context.Context, name pagefile.Name) {
	f, found, err := t.stat(ctx, name)
	if err != nil || !found || t.now().Add(t.ahead()).Sub(f.made) <= t.Renew {
		return
	}
	_, _ = t.client.CopyObject(ctx, &s3.CopyObjectInput{
		Bucket: &t.bucket, Key: aws.String(t.prefix + f.key), CopySource: aws.String(t.bucket + "/" + t.prefix + f.key),
		CopySourceIfMatch: &f.etag, MetadataDirective: types.MetadataDirectiveReplace,
	})
}

// later returns the later one of a file's recency and its last noted use.
func (u *uses) later(info tier.Info) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return tier.Later(info.Used, tier.Later(u.all[tier.ShardOf(info.Name)][info.Name], u.fresh[info.Name]))
}

// forget drops the uses of a file whose recency is set, or which is gone.
func (u *uses) forget(name pagefile.Name) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.fresh, name)
	delete(u.all[tier.ShardOf(name)], name)
}

// listed drops the uses of files that a shard has no more.
func (u *uses) listed(shard tier.Shard, files []tier.Info) {
	there := make(map[pagefile.Name]bool, len(files))
	for _, info := range files {
		there[info.Name] = true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.all[shard], func(name pagefile.Name, _ time.Time) bool { return !there[name] })
}

// add adds a use.
func (u *uses) add(name pagefile.Name, used time.Time) {
	shard := tier.ShardOf(name)
	if u.all[shard] == nil {
		u.all[shard] = make(map[pagefile.Name]time.Time)
	}
	u.all[shard][name] = tier.Later(u.all[shard][name], used)
}

// writeUses writes the uses of this process as one object, and copies files that are used and old onto themselves.
// After an error the next call writes them: recency may wait.
func (t *Tier) writeUses(ctx context.Context) {
	u := &t.uses
	u.mu.Lock()
	fresh, renewed := maps.Clone(u.fresh), u.renewed
	u.clock, u.renewed = nil, nil
	u.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	key := usesFolder + t.id + "-" + fmt.Sprint(t.notes.Add(1))
	if _, err := t.put(ctx, key, encodeUses(fresh), always); err != nil {
		return
	}
	t.wrote(fresh)
	for _, name := range renewed { // last: they may take all of the time
		t.renew(ctx, name)
	}
}

// wrote notes that uses were written.
func (t *Tier) wrote(fresh map[pagefile.Name]time.Time) {
	u := &t.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[tier.Shard]map[pagefile.Name]time.Time)
	}
	for name, used := range fresh {
		if u.fresh[name].Equal(used) {
			delete(u.fresh, name)
		}
		u.add(name, used)
	}
}

// encodeUses returns the content of an object of uses.
func encodeUses(all map[pagefile.Name]time.Time) []byte {
	content := make([]byte, 0, len(all)*useBytes)
	for name, used := range all {
		content = append(content, name.Fingerprint[:]...)
		content = append(content, name.Key[:]...)
		content = append(content, byte(name.Class))
		content = binary.BigEndian.AppendUint64(content, uint64(used.UnixNano()))
	}
	return content
}

// decode adds the uses in an object that was written at some time, before which they were.
func (u *uses) decode(content []byte, at time.Time) {
	for use := range slices.Chunk(content[:len(content)/useBytes*useBytes], useBytes) {
		name := pagefile.Name{Fingerprint: pagefile.Key(use[:32]), Key: pagefile.Key(use[32:64]), Class: pagefile.Class(use[64])}
		used := time.Unix(0, int64(binary.BigEndian.Uint64(use[65:])))
		if tier.Beyond(used, at) {
			used = at
		}
		u.add(name, used)
	}
}

// oldest returns those of the sorted objects that one fold takes.
func oldest(notes []object) []object {
	all := int64(0)
	for i, o := range notes {
		if all += o.bytes; i == notesMost || i > 0 && all > noteBytesMost {
			return notes[:i]
		}
	}
	return notes
}

// readUses reads the uses of all processes, and returns the keys of the objects that a collector folds, and the ETag
// of what was folded before. That is read last: an object that is gone by then was folded.
func (t *Tier) readUses(ctx context.Context) (notes []string, etag string, err error) {
	found, err := t.list(ctx, usesFolder, listMost)
	if err != nil {
		return nil, "", err
	}
	found = slices.DeleteFunc(found, func(o object) bool { return o.key == folded })
	slices.SortFunc(found, func(a, b object) int { return a.at.Compare(b.at) })
	found = oldest(found)
	contents := make([][]byte, len(found))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(findAtOnce)
	for i, o := range found {
		notes = append(notes, o.key)
		g.Go(func() (err error) {
			contents[i], _, err = t.read(gctx, o.key, usesMost*useBytes)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, "", err
	}
	before, etag, err := t.read(ctx, folded, foldedMost*useBytes)
	if err != nil {
		return nil, "", err
	}
	u := &t.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all, u.read = make(map[tier.Shard]map[pagefile.Name]time.Time), t.now()
	for i, o := range found {
		u.decode(contents[i], o.at)
	}
	now, _ := t.Now(ctx)
	u.decode(before, now)
	return notes, etag, nil
}

// lookAgain reads the uses of all processes where those that a listing had are old: this process may have slept.
func (t *Tier) lookAgain(ctx context.Context) error {
	t.uses.mu.Lock()
	read := t.uses.read
	t.uses.mu.Unlock()
	if read.IsZero() || tier.WallBetween(read, t.now()) < usesEvery {
		return nil
	}
	_, _, err := t.readUses(ctx)
	return err
}

// fold writes all uses that are known as one object, and removes the objects that had them. Of two that fold at the
// same time one does.
func (t *Tier) fold(ctx context.Context, notes []string, etag string) error {
	if len(notes) == 0 {
		return nil
	}
	var latest []tier.Info
	t.uses.mu.Lock()
	for _, shard := range t.uses.all {
		for name, used := range shard {
			latest = append(latest, tier.Info{Name: name, Used: used})
		}
	}
	t.uses.mu.Unlock()
	slices.SortFunc(latest, func(a, b tier.Info) int { return b.Used.Compare(a.Used) })
	keep := make(map[pagefile.Name]time.Time)
	for _, info := range latest[:min(len(latest), foldedMost)] {
		keep[info.Name] = info.Used
	}
	if _, err := t.put(ctx, folded, encodeUses(keep), onlyIf(etag)); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(findAtOnce)
	for _, key := range notes {
		g.Go(func() error { return t.delete(gctx, key) })
	}
	return g.Wait()
}
