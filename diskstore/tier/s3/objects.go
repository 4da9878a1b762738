package s3

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// listMost bounds the objects of one listing: a shard of a root of a million pages has some thousands.
	listMost = 1 << 18
	// fileMost bounds the objects of one file, which has one recency for each machine that set it at the same time.
	fileMost = 1000
)

// object is one of a listing.
type object struct {
	key   string // below the prefix of the tier
	bytes int64
	etag  string
	at    time.Time
}

// file is what a listing tells of one page, tail or manifest. Info has no name.
type file struct {
	tier.Info
	key       string
	etag      string
	found     bool // false where recencies are left alone
	made      time.Time
	recencies []string // keys
}

// isJudged reports whether a file is the judged one.
func (f file) isJudged(judged tier.Info) bool {
	return judged.Used.IsZero() || f.Bytes == judged.Bytes && f.Used.Equal(judged.Used)
}

// filesOf puts the objects of a listing together to files: a listing is in order, and recencies are
// behind their file.
func filesOf(objects []object) (files []file) {
	at := func(key string) *file {
		if n := len(files); n == 0 || files[n-1].key != key {
			files = append(files, file{key: key})
		}
		return &files[len(files)-1]
	}
	for _, o := range objects {
		key, used, recency := parseUsed(o.key)
		f := at(key)
		if !recency {
			f.found, f.etag, f.Bytes, f.Physical, f.made = true, o.etag, o.bytes, o.bytes, o.at
			f.Used = o.at
			continue
		}
		if len(f.recencies) == 0 || f.Used.Before(used) {
			f.Used = used
		}
		f.recencies = append(f.recencies, o.key)
	}
	return files
}

// list lists the objects whose keys begin so, at most some.
func (t *Tier) list(ctx context.Context, beginning string, most int) (found []object, err error) {
	in := s3.ListObjectsV2Input{Bucket: &t.bucket, Prefix: aws.String(t.prefix + beginning)}
	err = t.parts(ctx, in, beginning, func(part *s3.ListObjectsV2Output) error {
		for _, o := range part.Contents {
			key := strings.TrimPrefix(aws.ToString(o.Key), t.prefix)
			found = append(found, object{key, aws.ToInt64(o.Size), aws.ToString(o.ETag), aws.ToTime(o.LastModified)})
		}
		return tooMany(len(found), most)
	})
	return found, err
}

func tooMany(n, most int) error {
	if n > most {
		return fmt.Errorf("more than %d objects", most)
	}
	return nil
}

// errRepeats reports a listing that would not end.
var errRepeats = errors.New("the listing repeats itself")

// parts calls add with each part of a listing.
func (t *Tier) parts(ctx context.Context, in s3.ListObjectsV2Input, beginning string, add func(*s3.ListObjectsV2Output) error) error {
	pages, last := s3.NewListObjectsV2Paginator(t.client, &in), ""
	for pages.HasMorePages() {
		part, err := pages.NextPage(ctx)
		if err != nil {
			return t.failed("list", beginning, err)
		}
		t.told(part.ResultMetadata)
		next := aws.ToString(part.NextContinuationToken)
		if err = add(part); err == nil && next != "" && next == last {
			err = errRepeats
		}
		if err != nil {
			return t.failed("list", beginning, err)
		}
		last = next
	}
	return nil
}

// holds reports whether there is an object whose key begins so. Some stores list folders that are empty.
func (t *Tier) holds(ctx context.Context, beginning string) (bool, error) {
	got, err := t.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &t.bucket, Prefix: aws.String(t.prefix + beginning), MaxKeys: aws.Int32(1)})
	if err != nil {
		return false, t.failed("list", beginning, err)
	}
	return len(got.Contents) > 0, nil
}

// folders lists the names between a beginning, which ends with a slash, and the next slash.
func (t *Tier) folders(ctx context.Context, beginning string) (names []string, err error) {
	in := s3.ListObjectsV2Input{Bucket: &t.bucket, Prefix: aws.String(t.prefix + beginning), Delimiter: aws.String("/")}
	err = t.parts(ctx, in, beginning, func(part *s3.ListObjectsV2Output) error {
		for _, p := range part.CommonPrefixes {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(aws.ToString(p.Prefix), t.prefix+beginning), "/"))
		}
		return tooMany(len(names), listMost)
	})
	return names, err
}

// parseFirst parses the two digits of a shard.
func parseFirst(digits string) (first byte, ok bool) {
	b, err := hex.DecodeString(digits)
	return append(b, 0)[0], err == nil && len(b) == 1 && hex.EncodeToString(b) == digits
}

// condition is that of a PUT.
type condition struct{ match, noneMatch *string }

var always condition

// onlyIf is the condition that an object still has an ETag, or without one that there is none.
func onlyIf(etag string) condition {
	if etag == "" {
		return condition{noneMatch: aws.String("*")}
	}
	return condition{match: &etag}
}

// put writes a whole object, or returns errCondition.
func (t *Tier) put(ctx context.Context, key string, content []byte, when condition) (etag string, err error) {
	if t.unconditional.Load() {
		when = always
	}
	done, err := t.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &t.bucket, Key: aws.String(t.prefix + key), Body: bytes.NewReader(content), ContentLength: aws.Int64(int64(len(content))),
		IfMatch: when.match, IfNoneMatch: when.noneMatch,
	})
	if err != nil {
		return "", t.failed("write", key, err)
	}
	t.told(done.ResultMetadata)
	return aws.ToString(done.ETag), nil
}

// delete removes an object that may be missing.
func (t *Tier) delete(ctx context.Context, key string) error {
	_, err := t.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &t.bucket, Key: aws.String(t.prefix + key)})
	if err = t.failed("delete", key, err); errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	return err
}

// errCondition reports that another was faster.
var errCondition = errors.New("the object has changed meanwhile")

// errUnknown reports a request that the store does not know.
var errUnknown = errors.New("the store does not know this request")

// errNoBucket is a place that only a person can make.
var errNoBucket = fmt.Errorf("the bucket does not exist, make it or name another: %w", tier.ErrRootMissing)

// meanings are the errors that mean something to a tier, by code, or by status where the code says nothing.
var meanings = map[string]error{
	"NoSuchBucket": errNoBucket, "NoSuchKey": tier.ErrNotFound, "NotFound": tier.ErrNotFound,
	"PreconditionFailed": errCondition, "ConditionalRequestConflict": errCondition,
	"AccessDenied":  fs.ErrPermission, // also of a key that may only read
	"QuotaExceeded": tier.ErrNoSpace, "XMinioStorageFull": tier.ErrNoSpace, "InsufficientStorage": tier.ErrNoSpace,
}

// failed says what was attempted, and on what. An error of nothing is nil.
func (t *Tier) failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	var answer *smithyhttp.ResponseError
	var api smithy.APIError
	meaning := error(nil)
	if errors.As(err, &api) {
		meaning = meanings[api.ErrorCode()]
	}
	if meaning == nil && errors.As(err, &answer) {
		switch answer.HTTPStatusCode() {
		case http.StatusPreconditionFailed, http.StatusConflict:
			meaning = errCondition
		case http.StatusInsufficientStorage:
			meaning = tier.ErrNoSpace
		case http.StatusNotImplemented:
			meaning = errUnknown
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New(err.Error()) // the connection ends there, not the file
	}
	err = fmt.Errorf("%s s3://%s/%s%s: %s%w", what, t.bucket, t.prefix, key, advice(err), err)
	if meaning != nil {
		return fmt.Errorf("%w (%w)", meaning, err)
	}
	return err
}

// advice says what the reader of an error of the client can do, or nothing.
func advice(err error) string {
	var answer *smithyhttp.ResponseError
	var send *smithyhttp.RequestSendError
	switch text := err.Error(); {
	case errors.As(err, &send):
		return "no connection, look at the endpoint and whether it runs: "
	case strings.Contains(text, "get identity: "): // these errors have no type
		return "there are no credentials, give the server AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: "
	case strings.Contains(text, "deserializ"):
		return "no S3 answers there, look at the endpoint: "
	case errors.As(err, &answer) && (answer.HTTPStatusCode() == http.StatusForbidden || answer.HTTPStatusCode() == http.StatusUnauthorized):
		return "the store refuses the credentials, or what they are to do: "
	}
	return ""
}
