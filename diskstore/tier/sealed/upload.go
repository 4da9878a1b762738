package sealed

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// pieceMost is the length of the longest piece that an inner upload gets at once.
const pieceMost = 1 << 20

// upload keeps one chunk back: only the end tells which one is the last.
type upload struct {
	t       *sealedTier
	inner   tier.Upload
	name    pagefile.Name
	sealer  *sealer
	chunk   []byte // not sealed yet
	number  int64  // of chunk
	written int64
	ended   bool
	failed  error
}

// errEnded is the error of a Write after Seal: a chunk sealed twice could show its content.
var errEnded = errors.New("sealed: write after the end of the file")

func (t *sealedTier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	k := t.keys[0]
	inner, err := t.inner.Create(ctx, k.name(name))
	if err != nil {
		return nil, err
	}
	return &upload{t: t, inner: inner, name: name, sealer: k.newSealer(fileName(name)), chunk: make([]byte, 0, chunkBytes)}, nil
}

func (u *upload) Write(ctx context.Context, p []byte) error {
	if u.ended {
		return errEnded
	}
	piece := make([]byte, 0, min(pieceMost, sealedLen(int64(len(p)))))
	for len(p) > 0 && u.failed == nil {
		if len(u.chunk) == chunkBytes {
			piece = u.seal(ctx, piece, false)
		}
		n := min(len(p), chunkBytes-len(u.chunk))
		u.chunk = append(u.chunk, p[:n]...)
		u.written += int64(n)
		p = p[n:]
	}
	return u.send(ctx, piece)
}

// seal appends the chunk to a piece, which is sent first where it is full.
func (u *upload) seal(ctx context.Context, piece []byte, last bool) []byte {
	if len(piece)+sealedChunk > pieceMost {
		u.failed = u.send(ctx, piece)
		piece = make([]byte, 0, cap(piece))
	}
	if u.number == 0 {
		piece = append(piece, u.sealer.header[:]...)
	}
	piece = u.sealer.seal(piece, u.number, last, u.chunk)
	u.number++
	u.chunk = u.chunk[:0]
	return piece
}

// send gives a piece away: an inner upload may keep it.
func (u *upload) send(ctx context.Context, piece []byte) error {
	if u.failed == nil && len(piece) > 0 {
		u.failed = u.inner.Write(ctx, piece)
	}
	return u.failed
}

func (u *upload) Written() int64 { return u.written }

// end sends the last chunk.
func (u *upload) end(ctx context.Context) error {
	if u.ended {
		return u.failed
	}
	u.ended = true
	return u.send(ctx, u.seal(ctx, nil, true))
}

func (u *upload) Seal(ctx context.Context) error {
	if err := u.end(ctx); err != nil {
		return err
	}
	return u.inner.Seal(ctx)
}

// Commit removes the file of a former key, which would come back when the new one is gone. A former file that
// cannot be removed stays, behind the new one.
func (u *upload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	if err := u.end(ctx); err != nil {
		return tier.Committed{}, err
	}
	done, err := u.inner.Commit(ctx, used)
	if !done.Found() {
		return tier.Committed{}, err
	}
	done.Info = opened(done.Info, u.name)
	for _, k := range u.t.keys[1:] {
		former, ferr := tier.Stat(ctx, u.t.inner, k.name(u.name))
		if ferr != nil {
			continue
		}
		if removed, _ := u.t.inner.Remove(ctx, former); removed {
			done.Replaced, done.Freed = true, done.Freed+former.Physical
		}
	}
	return done, err
}

func (u *upload) Abort() { u.inner.Abort() }
