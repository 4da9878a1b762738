package valkey

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// uploadLife is the time after which the parts of an upload that has not committed are gone.
	uploadLife = time.Hour

	// replacedLife is the time for which a replaced page's parts stay for those who read it.
	replacedLife = time.Minute

	// abortIn bounds the wait of Abort; what it does not remove expires.
	abortIn = time.Second
)

// upload keeps up to windowParts parts, and sends them in one round trip.
type upload struct {
	t       *Tier
	name    pagefile.Name
	id      string
	buf     []byte
	written int64
	sent    int64 // parts
	sealed  bool
	ended   bool // by Commit or Abort
}

func (t *Tier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.check(ctx); err != nil {
		return nil, err
	}
	return &upload{t: t, name: name, id: newID()}, nil
}

func (u *upload) what(verb string) string { return verb + " page " + u.name.Key.String() }

func (u *upload) Write(ctx context.Context, p []byte) error {
	if err := u.t.check(ctx); err != nil {
		return err
	}
	for len(p) > 0 {
		n := min(len(p), windowParts*partBytes-len(u.buf))
		u.buf = append(u.buf, p[:n]...)
		u.written += int64(n)
		p = p[n:]
		if len(u.buf) == windowParts*partBytes {
			if err := u.send(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends the parts in the buffer. After an error the client may still read the buffer.
func (u *upload) send(ctx context.Context) error {
	var cmds []valkey.Completed
	for rest := u.buf; len(rest) > 0; {
		n := min(len(rest), partBytes)
		cmds = append(cmds, u.t.client.B().Set().Key(u.t.partKey(u.id, u.sent)).Value(valkey.BinaryString(rest[:n])).
			Ex(uploadLife).Build().ToRetryable())
		rest = rest[n:]
		u.sent++
	}
	if len(cmds) == 0 {
		return nil
	}
	buf := u.buf
	u.buf = nil
	if _, err := u.t.do(ctx, u.what("write"), cmds...); err != nil {
		return err
	}
	u.buf = buf[:0]
	return nil
}

func (u *upload) Written() int64 { return u.written }

// Seal sends what is left. Commit checks the lengths, when nothing can come between.
func (u *upload) Seal(ctx context.Context) error {
	if err := u.t.check(ctx); err != nil {
		return err
	}
	err := u.send(ctx)
	u.sealed = err == nil
	u.buf = nil
	return err
}

func (u *upload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	if !u.sealed {
		if err := u.Seal(ctx); err != nil {
			return tier.Committed{}, err
		}
	}
	n, err := u.t.number(ctx, u.what("commit"), u.t.run(commit, []string{u.t.key(u.name)},
		u.id, strconv.FormatInt(u.written, 10), nanos(used), seconds(replacedLife)))
	switch {
	case err != nil:
		return tier.Committed{}, err
	case n == -2:
		return tier.Committed{}, fmt.Errorf("%s in %s: the server has removed parts of it already: %w", u.what("commit"), u.t.where, tier.ErrNoSpace)
	}
	u.ended = true
	done := tier.Committed{Info: info(u.name, u.written, used), Replaced: n >= 0}
	if done.Replaced {
		done.Freed = memory(n)
	}
	return done, nil
}

// Abort leaves a page whose Commit has succeeded without an answer.
func (u *upload) Abort() {
	if u.ended {
		return
	}
	u.ended, u.buf = true, nil
	if u.sent == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortIn)
	defer cancel()
	_, _ = u.t.do(ctx, u.what("abort"), u.t.run(abort, []string{u.t.key(u.name)}, u.id, strconv.FormatInt(u.sent*partBytes, 10)))
}
