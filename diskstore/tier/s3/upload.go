package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// partBytes is the size of a part, and bounds the memory of an upload. S3 takes parts of 5 MiB and more.
	partBytes = 8 << 20
	// abortMost bounds the time in which an upload is dropped.
	abortMost = 10 * time.Second
)

// upload keeps what does not fill a part. A file of one part is written by Commit.
type upload struct {
	t       *Tier
	name    pagefile.Name
	rest    []byte
	id      *string // of the upload of several parts; nil before the second
	parts   []types.CompletedPart
	written int64
}

func (t *Tier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return &upload{t: t, name: name}, nil
}

func (u *upload) Write(ctx context.Context, p []byte) error {
	if len(u.rest) >= partBytes {
		if err := u.flush(ctx); err != nil {
			return err
		}
	}
	u.rest = append(u.rest, p...)
	u.written += int64(len(p))
	return nil
}

func (u *upload) Written() int64 { return u.written }

// flush uploads a part.
func (u *upload) flush(ctx context.Context) error {
	key := aws.String(u.t.prefix + objectKey(u.name))
	if u.id == nil {
		begun, err := u.t.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &u.t.bucket, Key: key})
		if err != nil {
			return u.t.failed("begin to write", objectKey(u.name), err)
		}
		u.id = begun.UploadId
	}
	n := int32(len(u.parts) + 1)
	done, err := u.t.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &u.t.bucket, Key: key, UploadId: u.id, PartNumber: &n, Body: bytes.NewReader(u.rest), ContentLength: aws.Int64(int64(len(u.rest))),
	})
	if err != nil {
		return u.t.failed("write a part of", objectKey(u.name), err)
	}
	u.parts = append(u.parts, types.CompletedPart{ETag: done.ETag, PartNumber: &n})
	u.rest = u.rest[:0]
	return nil
}

// Seal uploads the last one of several parts.
func (u *upload) Seal(ctx context.Context) error {
	if u.id == nil || len(u.rest) == 0 {
		return u.t.begin(ctx)
	}
	return u.flush(ctx)
}

func (u *upload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	if err := u.Seal(ctx); err != nil {
		return tier.Committed{}, err
	}
	for try := 1; ; try++ {
		was, replaced, err := u.t.stat(ctx, u.name)
		if err != nil {
			return tier.Committed{}, err
		}
		if err = u.finish(ctx, onlyIf(was.etag)); errors.Is(err, errCondition) && try < triesMost {
			continue
		}
		if err != nil {
			return tier.Committed{}, err
		}
		u.id = nil // nothing to abort
		done := tier.Committed{Info: tier.Info{Name: u.name, Bytes: u.written, Physical: u.written, Used: used}, Replaced: replaced, Freed: was.Physical}
		was.Name = u.name
		return done, u.t.setUsed(ctx, was, used)
	}
}

// finish makes the file visible, or returns errCondition.
func (u *upload) finish(ctx context.Context, when condition) error {
	if u.id == nil {
		_, err := u.t.put(ctx, objectKey(u.name), u.rest, when)
		return err
	}
	if u.t.unconditional.Load() {
		when = always
	}
	_, err := u.t.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &u.t.bucket, Key: aws.String(u.t.prefix + objectKey(u.name)), UploadId: u.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: u.parts}, IfMatch: when.match, IfNoneMatch: when.noneMatch,
	})
	return u.t.failed("end the upload of", objectKey(u.name), err)
}

func (u *upload) Abort() {
	u.rest = nil
	if u.id == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortMost)
	defer cancel()
	_, _ = u.t.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &u.t.bucket, Key: aws.String(u.t.prefix + objectKey(u.name)), UploadId: u.id,
	})
	u.id = nil
}

// blob reads ranges of one version of an object.
type blob struct {
	t    *Tier
	file file
}

func (t *Tier) Open(ctx context.Context, name pagefile.Name, _ bool) (tier.Blob, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	f, found, err := t.stat(ctx, name)
	if err == nil && !found {
		err = tier.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &blob{t, f}, nil
}

func (b *blob) Info() tier.Info { return b.file.Info }
func (b *blob) Size() int64     { return b.file.Bytes }
func (b *blob) Close()          {}

// ReadAt returns [tier.ErrStale] when the object was replaced or removed.
func (b *blob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := b.t.begin(ctx); err != nil || len(p) == 0 {
		return err
	}
	if off < 0 || off+int64(len(p)) > b.file.Bytes {
		return io.ErrUnexpectedEOF
	}
	last := off + int64(len(p)) - 1
	got, err := b.t.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &b.t.bucket, Key: aws.String(b.t.prefix + b.file.key), IfMatch: &b.file.etag,
		Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, last)),
	})
	if err = b.t.failed("read", b.file.key, err); errors.Is(err, errCondition) || errors.Is(err, tier.ErrNotFound) {
		return fmt.Errorf("%w (%w)", tier.ErrStale, err)
	}
	if err != nil {
		return err
	}
	defer got.Body.Close()
	if want := fmt.Sprintf("bytes %d-%d/%d", off, last, b.file.Bytes); aws.ToString(got.ContentRange) != want {
		return b.t.failed("read", b.file.key, fmt.Errorf("asked for %s, the answer has %q", want, aws.ToString(got.ContentRange)))
	}
	if _, err := io.ReadFull(got.Body, p); err != nil {
		return b.t.failed("read", b.file.key, err)
	}
	return nil
}
