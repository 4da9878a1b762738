package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// lockLife is the time after which others collect, although the last to lock did not say that it has ended.
	lockLife = 10 * time.Minute
	// foldIn bounds the end of a collection.
	foldIn = time.Minute
)

var _ tier.Collected = (*Tier)(nil)

// Lock makes this process the one that collects: an object has a name for as long as one does. The store's clock
// tells when it was written and what time it is. Two that collect at the same time, one of which slept, do no harm:
// each file is judged by the latest uses when it is removed.
func (t *Tier) Lock(ctx context.Context) (release func(), err error) {
	conditional, err := t.Conditional(ctx)
	if err != nil {
		return nil, err
	}
	if !conditional {
		return nil, tier.ErrUncollected
	}
	etag, free, err := t.lockFree(ctx)
	if err == nil && !free {
		err = tier.ErrLocked
	}
	if err != nil {
		return nil, err
	}
	etag, err = t.put(ctx, lock, []byte(rand.Text()), onlyIf(etag))
	if errors.Is(err, errCondition) {
		return nil, tier.ErrLocked
	}
	if err != nil {
		return nil, err
	}
	notes, before, err := t.readUses(ctx)
	if err != nil {
		t.unlock(ctx, etag)
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), foldIn)
		defer cancel()
		_ = t.fold(ctx, notes, before) // after an error the next collector does
		t.unlock(ctx, etag)
	}, nil
}

// lockFree reports whether nobody collects, and the ETag of the lock.
func (t *Tier) lockFree(ctx context.Context) (etag string, free bool, err error) {
	got, err := t.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &t.bucket, Key: aws.String(t.prefix + lock)})
	if err = t.failed("read", lock, err); errors.Is(err, tier.ErrNotFound) {
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	now, ok := awsmiddleware.GetServerTime(got.ResultMetadata)
	if !ok {
		now = t.now()
	}
	free = aws.ToInt64(got.ContentLength) == 0 || now.Sub(aws.ToTime(got.LastModified)) > lockLife
	return aws.ToString(got.ETag), free, nil
}

// unlock empties the lock, unless another has it.
func (t *Tier) unlock(ctx context.Context, etag string) { _, _ = t.put(ctx, lock, nil, onlyIf(etag)) }

// Now returns the time of the store's clock, as its last answer told it.
func (t *Tier) Now(context.Context) (time.Time, error) { return t.now().Add(t.ahead()), nil }

// ahead is the lead of the store's clock over this machine's: 0 where both may be right.
func (t *Tier) ahead() time.Duration {
	if d := time.Duration(t.lead.Load()); d.Abs() > tier.ClockSlack {
		return d
	}
	return 0
}

// told notes the time in an answer.
func (t *Tier) told(answer middleware.Metadata) {
	if now, ok := awsmiddleware.GetServerTime(answer); ok {
		t.lead.Store(int64(now.Sub(t.now()).Round(time.Second)))
	}
}
