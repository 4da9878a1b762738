package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// findAtOnce is the number of requests that one look-up makes at the same time.
	findAtOnce = 16
	// triesMost bounds the attempts of a change for which others are faster each time.
	triesMost = 16
	// probes is the number of pages of a chain at which one round looks: three rounds find the end of 512.
	probes = 10
)

// quarantineMost is the number of files that quarantine keeps.
const quarantineMost = 16

// ledgerMost bounds the ledger, whose content is not trusted, in bytes.
const ledgerMost = 16 << 20

// Tier is a tier in a bucket. See [tier.Tier] for its methods.
type Tier struct {
	client *s3.Client
	bucket string
	prefix string // of all keys; empty, or ends with a slash
	id     string // of this process in the ledger
	closed atomic.Bool
	now    func() time.Time

	// Log is told that the store ignores conditions; nil for nobody.
	Log           *slog.Logger
	tried         atomic.Bool // whether conditions hold
	unconditional atomic.Bool // they do not

	// Renew is the age at which a file that is used is copied onto itself, so that a rule of the bucket which removes
	// old objects leaves it. 0 copies none.
	Renew time.Duration
	uses  uses
	notes atomic.Int64 // objects of uses that this process has written
	lead  atomic.Int64 // of the store's clock over this machine's, in ns
}

var _ tier.Tier = (*Tier)(nil)

// New returns a tier in a bucket that exists, below a prefix: New asks nothing. The prefix is empty or ends with a slash.
func New(client *s3.Client, bucket, prefix string) *Tier {
	return &Tier{client: client, bucket: bucket, prefix: prefix, id: rand.Text(), now: time.Now}
}

// String is the address, without its settings.
func (t *Tier) String() string {
	return Scheme + "://" + strings.TrimSuffix(t.bucket+"/"+t.prefix, "/")
}

// begin begins every method.
func (t *Tier) begin(ctx context.Context) error {
	if t.closed.Load() {
		return tier.ErrClosed
	}
	return ctx.Err()
}

// stat describes one file; found is false without it.
func (t *Tier) stat(ctx context.Context, name pagefile.Name) (f file, found bool, err error) {
	objects, err := t.list(ctx, objectKey(name), fileMost)
	if err != nil {
		return file{}, false, err
	}
	for _, f := range filesOf(objects) {
		if f.key == objectKey(name) {
			t.seen(&f, name)
			return f, f.found, nil
		}
	}
	return file{Info: tier.Info{Name: name}}, false, nil
}

// FindAtOnce is that of [tier.ManyFinder].
func (t *Tier) FindAtOnce() int { return 1 << 16 }

func (t *Tier) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	if err := t.begin(ctx); err != nil {
		return infos, err
	}
	all := make([]int, len(names))
	for i := range all {
		all[i] = i
	}
	if leading && len(names) > probes {
		return t.findLeading(ctx, names, infos)
	}
	return infos, t.findSome(ctx, names, infos, all)
}

// findLeading finds where a chain ends, as if nothing were missing in it: a store may evict by rules of its own,
// and a reader sees what is missing. In each round it looks at some pages of those of which it knows nothing, among
// them the first and the last. Infos between two that are there are guesses.
func (t *Tier) findLeading(ctx context.Context, names []pagefile.Name, infos []tier.Info) ([]tier.Info, error) {
	at := 0
	for end := len(names); at < end; {
		looked := spread(at, end)
		if err := t.findSome(ctx, names, infos, looked); err != nil {
			clear(infos[at:])
			return infos, err
		}
		missing := slices.IndexFunc(looked, func(i int) bool { return !infos[i].Found() })
		found := looked
		if missing >= 0 {
			end, found = looked[missing], looked[:missing]
		}
		for _, to := range found {
			for i := at; i < to; i++ {
				infos[i] = infos[to]
				infos[i].Name = names[i]
			}
			at = to + 1
		}
		clear(infos[end:])
	}
	return infos, nil
}

// spread picks numbers of [begin, end): the first, the last, and some between them, at most probes.
func spread(begin, end int) []int {
	n := min(end-begin, probes)
	picked := make([]int, n)
	for i := range picked {
		picked[i] = begin + i*(end-1-begin)/max(1, n-1)
	}
	return picked
}

// findSome describes those of names that are numbered, all at the same time.
func (t *Tier) findSome(ctx context.Context, names []pagefile.Name, infos []tier.Info, numbers []int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(findAtOnce)
	for _, i := range numbers {
		g.Go(func() error {
			f, found, err := t.stat(ctx, names[i])
			if found {
				infos[i] = f.Info
			}
			return err
		})
	}
	return g.Wait()
}

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	f, found, err := t.stat(ctx, name)
	if err == nil && !found {
		err = tier.ErrNotFound
	}
	if err != nil {
		return err
	}
	return t.setUsed(ctx, f, used)
}

// setUsed sets a file's recency: the new one first, so that there is always one.
func (t *Tier) setUsed(ctx context.Context, f file, used time.Time) error {
	key := usedKey(f.Name, used)
	t.uses.forget(f.Name)
	if _, err := t.put(ctx, key, nil, always); err != nil {
		return err
	}
	for _, old := range f.recencies {
		if old == key {
			continue
		}
		if err := t.delete(ctx, old); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	if err := t.begin(ctx); err != nil {
		return false, err
	}
	if err := t.lookAgain(ctx); err != nil {
		return false, err
	}
	f, found, err := t.stat(ctx, judged.Name)
	if err != nil {
		return false, err
	}
	if found && !f.isJudged(judged) {
		return false, tier.ErrReplaced
	}
	return found, t.drop(ctx, f)
}

// drop removes a file, and what a removal that broke off has left of it.
func (t *Tier) drop(ctx context.Context, f file) error {
	t.uses.forget(f.Name)
	if f.found {
		if err := t.delete(ctx, f.key); err != nil {
			return err
		}
	}
	for _, key := range f.recencies {
		if err := t.delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tier) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	if err := t.begin(ctx); err != nil {
		return false, err
	}
	f, found, err := t.stat(ctx, judged.Name)
	if err != nil || !found || !f.isJudged(judged) {
		return false, err
	}
	kept, err := t.list(ctx, quarantine, listMost)
	if err != nil {
		return false, err
	}
	if len(kept) >= quarantineMost {
		return false, tier.ErrQuarantineFull
	}
	_, err = t.client.CopyObject(ctx, &s3.CopyObjectInput{
		Bucket: &t.bucket, Key: aws.String(t.prefix + quarantine + f.Key.String() + "." + reason + "." + rand.Text()),
		CopySource: aws.String(t.bucket + "/" + t.prefix + f.key), CopySourceIfMatch: &f.etag,
	})
	if err != nil {
		return false, t.failed("copy to quarantine", f.key, err)
	}
	return true, t.drop(ctx, f)
}

func (t *Tier) Survey(ctx context.Context) (fingerprints []pagefile.Key, shards []tier.Shard, err error) {
	if err := t.begin(ctx); err != nil {
		return nil, nil, err
	}
	if _, _, err := t.readUses(ctx); err != nil {
		return nil, nil, err
	}
	names, err := t.folders(ctx, version)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		fingerprint, err := pagefile.ParseKey(name)
		if err != nil {
			continue // quarantine
		}
		if holds, err := t.holds(ctx, fingerprintKey(fingerprint)+"/"); err != nil || !holds {
			if err != nil {
				return nil, nil, err
			}
			continue
		}
		fingerprints = append(fingerprints, fingerprint)
		for class, folder := range folders {
			firsts, err := t.folders(ctx, fingerprintKey(fingerprint)+"/"+folder+"/")
			if err != nil {
				return nil, nil, err
			}
			for _, digits := range firsts {
				if first, ok := parseFirst(digits); ok {
					shards = append(shards, tier.Shard{Fingerprint: fingerprint, Class: class, First: first})
				}
			}
		}
	}
	return fingerprints, shards, nil
}

func (t *Tier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	at := shardKey(shard)
	objects, err := t.list(ctx, at, listMost)
	if err != nil {
		return nil, err
	}
	var infos []tier.Info
	for _, f := range filesOf(objects) {
		key, err := pagefile.ParseKey(f.key[len(at):])
		t.seen(&f, pagefile.Name{Fingerprint: shard.Fingerprint, Class: shard.Class, Key: key})
		if err == nil && f.found && tier.ShardOf(f.Name) == shard {
			infos = append(infos, f.Info)
		}
	}
	t.uses.listed(shard, infos)
	return infos, nil
}

// AddBranch writes an object, which is durable.
func (t *Tier) AddBranch(ctx context.Context, branch tier.Branch, _ bool) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	_, err := t.put(ctx, branchKey(branch), nil, always)
	return err
}

func (t *Tier) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	objects, err := t.list(ctx, branchPrefix(fingerprint, prefix), listMost)
	if err != nil {
		return nil, err
	}
	var found []tier.Branch
	for _, o := range objects {
		if b, ok := parseBranch(fingerprint, o.key); ok {
			found = append(found, b)
		}
	}
	return found, nil
}

func (t *Tier) RemoveBranch(ctx context.Context, branch tier.Branch) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	return t.delete(ctx, branchKey(branch))
}

// Conditional reports whether the store refuses a PUT whose condition does not hold. The first call writes an object,
// and deletes it.
func (t *Tier) Conditional(ctx context.Context) (bool, error) {
	if err := t.begin(ctx); err != nil {
		return false, err
	}
	err := t.tryConditions(ctx)
	return !t.unconditional.Load(), err
}

// tryConditions looks, once, whether the store refuses a PUT whose condition does not hold. Where it does not, PUTs
// have none.
func (t *Tier) tryConditions(ctx context.Context) error {
	if t.tried.Load() {
		return nil
	}
	key := probe + rand.Text() // no other goroutine deletes it meanwhile
	if _, err := t.put(ctx, key, nil, always); err != nil {
		return err
	}
	for _, when := range []condition{onlyIf(""), onlyIf(`"00000000000000000000000000000000"`)} {
		switch _, err := t.put(ctx, key, nil, when); {
		case err == nil, errors.Is(err, errUnknown):
			if !t.unconditional.Swap(true) && t.Log != nil {
				t.Log.Warn("kv tier: the engine ignores conditional requests, so let a rule of the bucket expire objects: no server collects them", "bucket", t.bucket, "prefix", t.prefix)
			}
		case !errors.Is(err, errCondition):
			return err
		}
	}
	t.tried.Store(true)
	return t.delete(ctx, key)
}

func (t *Tier) Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	if change != nil {
		if err := t.tryConditions(ctx); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		if err := t.begin(ctx); err != nil {
			return nil, err
		}
		content, etag, err := t.read(ctx, ledger, ledgerMost)
		if err != nil || change == nil {
			return content, err
		}
		next, err := change(content, t.id)
		if err != nil {
			return nil, err
		}
		_, err = t.put(ctx, ledger, next, onlyIf(etag))
		if !errors.Is(err, errCondition) || try == triesMost {
			return next, err
		}
	}
}

// read returns a small object and its ETag: nothing where there is none.
func (t *Tier) read(ctx context.Context, key string, most int64) ([]byte, string, error) {
	got, err := t.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &t.bucket, Key: aws.String(t.prefix + key)})
	if err = t.failed("read", key, err); errors.Is(err, tier.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer got.Body.Close()
	var content bytes.Buffer
	n, err := io.Copy(&content, io.LimitReader(got.Body, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("it is larger than %d bytes", most)
	}
	return content.Bytes(), aws.ToString(got.ETag), t.failed("read", key, err)
}

// Close writes uses, and closes connections that are idle.
func (t *Tier) Close() error {
	if !t.closed.Swap(true) {
		t.uses.stop()
		ctx, cancel := context.WithTimeout(context.Background(), leaveIn)
		defer cancel()
		t.writeUses(ctx)
	}
	if client, ok := t.client.Options().HTTPClient.(interface{ CloseIdleConnections() }); ok {
		client.CloseIdleConnections()
	}
	return nil
}
