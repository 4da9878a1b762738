package valkey

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// lookAtOnce is the number of pages in one run of a script: the server does nothing else meanwhile.
	lookAtOnce = 64

	// windowParts is the number of parts in one round trip of a page's bytes.
	windowParts = 4

	// quarantineFiles and quarantineLife bound the memory that damaged pages take.
	quarantineFiles = 16
	quarantineLife  = 72 * time.Hour

	// Memory that the server needs for a page and for each part, beside the bytes.
	pageMemory = 384
	partMemory = 192
)

func info(name pagefile.Name, bytes int64, used time.Time) tier.Info {
	return tier.Info{Name: name, Bytes: bytes, Physical: memory(bytes), Used: used}
}

// memory is the memory that the server needs for a page, about.
func memory(bytes int64) int64 { return bytes + pageMemory + parts(bytes)*partMemory }

// page is a page that is there, and where its bytes are.
type page struct {
	tier.Info
	id string
}

// look looks for pages in one round trip. The page that is not there is zero. The command is TOUCH, or
// EXISTS, which leaves the server's order of eviction alone.
func (t *Tier) look(ctx context.Context, names []pagefile.Name, command string) ([]page, error) {
	pages := make([]page, len(names))
	if len(names) == 0 {
		return pages, t.check(ctx)
	}
	var cmds []valkey.Completed
	for some := range slices.Chunk(names, lookAtOnce) {
		cmds = append(cmds, t.looking(t.keys(some), command))
	}
	answers, err := t.do(ctx, "look for pages", cmds...)
	if err != nil {
		return pages, err
	}
	for i, answer := range answers {
		some, err := answer.ToArray()
		if err != nil {
			return pages, t.failed(ctx, "look for pages", err)
		}
		at := i * lookAtOnce
		for j, name := range names[at:min(at+lookAtOnce, len(names))] {
			if j < len(some) {
				pages[at+j] = described(name, some[j])
			}
		}
	}
	return pages, nil
}

// described returns the page of an answer of find, zero if there is none.
func described(name pagefile.Name, answer valkey.ValkeyMessage) page {
	fields, err := answer.AsStrSlice() // an error without the page
	if err != nil || len(fields) != 3 {
		return page{}
	}
	bytes, err := strconv.ParseInt(fields[0], 10, 64)
	used, err2 := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || err2 != nil || bytes < 0 {
		return page{}
	}
	return page{info(name, bytes, time.Unix(0, used)), fields[2]}
}

func (t *Tier) keys(names []pagefile.Name) []string {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = t.key(name)
	}
	return keys
}

// FindAtOnce is that of [tier.ManyFinder]: the names of a round trip for whose commands connBytes has room.
func (t *Tier) FindAtOnce() int { return 1000 }

// Find makes the pages that it finds used, for the server's choice of what it evicts.
func (t *Tier) Find(ctx context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	pages, err := t.look(ctx, names, "TOUCH")
	infos := make([]tier.Info, len(names))
	for i, p := range pages {
		infos[i] = p.Info
	}
	return infos, err
}

// Open needs no anew: nothing is cached.
func (t *Tier) Open(ctx context.Context, name pagefile.Name, _ bool) (tier.Blob, error) {
	pages, err := t.look(ctx, []pagefile.Name{name}, "TOUCH")
	if err != nil {
		return nil, err
	}
	if !pages[0].Found() {
		return nil, tier.ErrNotFound
	}
	return &blob{t, pages[0]}, nil
}

type blob struct {
	t *Tier
	page
}

func (b *blob) Info() tier.Info { return b.page.Info }
func (b *blob) Size() int64     { return b.Bytes }
func (b *blob) Close()          {}

// ReadAt reads ranges of up to windowParts parts in one round trip. The error is tier.ErrStale when a part
// is gone.
func (b *blob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > b.Bytes-int64(len(p)) {
		return io.ErrUnexpectedEOF
	}
	for len(p) > 0 {
		var cmds []valkey.Completed
		var into [][]byte
		for len(p) > 0 && len(cmds) < windowParts {
			i, from := off/partBytes, off%partBytes
			n := min(partBytes-from, int64(len(p)))
			cmds = append(cmds, b.t.client.B().Getrange().Key(b.t.partKey(b.id, i)).Start(from).End(from+n-1).Build())
			into = append(into, p[:n])
			p, off = p[n:], off+n
		}
		if err := b.read(ctx, into, cmds); err != nil {
			return err
		}
	}
	return nil
}

func (b *blob) read(ctx context.Context, into [][]byte, cmds []valkey.Completed) error {
	what := "read page " + b.Key.String()
	answers, err := b.t.do(ctx, what, cmds...)
	if err != nil {
		return err
	}
	for i, answer := range answers {
		part, err := answer.ToString()
		if err != nil {
			return b.t.failed(ctx, what, err)
		}
		if len(part) != len(into[i]) {
			return fmt.Errorf("%s in %s: %d bytes of %d are left: %w", what, b.t.where, len(part), len(into[i]), tier.ErrStale)
		}
		copy(into[i], part)
	}
	return nil
}

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	n, err := t.number(ctx, "touch page "+name.Key.String(), t.run(touch, []string{t.key(name)}, nanos(used)).ToRetryable())
	if err == nil && n == 0 {
		return tier.ErrNotFound
	}
	return err
}

func nanos(used time.Time) string { return strconv.FormatInt(used.UnixNano(), 10) }

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// number runs a command whose answer is a number.
func (t *Tier) number(ctx context.Context, what string, cmd valkey.Completed) (int64, error) {
	answers, err := t.do(ctx, what, cmd)
	if err != nil {
		return 0, err
	}
	n, err := answers[0].AsInt64()
	if err != nil {
		return 0, t.failed(ctx, what, err)
	}
	return n, nil
}

// judgement is the arguments of remove and aside that tell the judged page, empty ones for any.
func judgement(judged tier.Info) []string {
	if judged.Used.IsZero() {
		return []string{"", ""}
	}
	return []string{strconv.FormatInt(judged.Bytes, 10), nanos(judged.Used)}
}

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	n, err := t.number(ctx, "remove page "+judged.Key.String(), t.run(remove, []string{t.key(judged.Name)}, judgement(judged)...))
	if err == nil && n < 0 {
		return false, tier.ErrReplaced
	}
	return n > 0, err
}

// Quarantine keeps a page for quarantineLife. There are no entries that are not regular files.
func (t *Tier) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	if judged.Bytes == tier.NotRegular {
		return false, t.check(ctx)
	}
	args := append(judgement(judged), reason, seconds(quarantineLife), strconv.Itoa(quarantineFiles))
	n, err := t.number(ctx, "quarantine page "+judged.Key.String(), t.run(aside, []string{t.key(judged.Name)}, args...))
	if err == nil && n == -2 {
		return false, tier.ErrQuarantineFull
	}
	return n > 0, err
}

// check is the error of an operation that sends nothing.
func (t *Tier) check(ctx context.Context) error {
	if t.closed.Load() {
		return tier.ErrClosed
	}
	return ctx.Err()
}
