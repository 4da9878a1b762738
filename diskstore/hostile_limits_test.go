package diskstore

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every limit of the page format is tried on both sides: as an argument, and in
// the header of a file, where nobody can be trusted. Limits that other tests try
// are those of the breaker (TestBreaker), quarantine
// (TestDamageIsQuarantinedAndRepaired), recency (TestTouchIsThrottled), orphans
// (TestStaleTemporaryFilesAreCleaned) and free space
// (TestUnlimitedTierKeepsSomeOfTheDiskFree).

// manySections returns n sections of one byte per row.
func manySections(n int) []Section {
	sections := make([]Section, n)
	for i := range sections {
		sections[i] = Section{Group: uint16(i >> 8), Layer: uint16(i & 0xff), RowBytes: 1}
	}
	return sections
}

func TestLimitsOfALayout(t *testing.T) {
	for name, tc := range map[string]struct {
		sections []Section
		tokens   int
		ok       bool
	}{
		"most tokens":       {manySections(1), maxTokens, true},
		"too many tokens":   {manySections(1), maxTokens + 1, false},
		"one token":         {manySections(1), 1, true},
		"no token":          {manySections(1), 0, false},
		"most sections":     {manySections(maxSections), 1, true},
		"too many sections": {manySections(maxSections + 1), 1, false},
		"no section":        {nil, 1, false},
		"largest row":       {[]Section{{RowBytes: maxRowBytes}}, 1, true},
		"too large a row":   {[]Section{{RowBytes: maxRowBytes + 1}}, 1, false},
		"largest layout":    {[]Section{{RowBytes: maxLayoutBytes / maxTokens}}, maxTokens, true},
		"too large a layout": {
			[]Section{{RowBytes: maxLayoutBytes / maxTokens}, {Layer: 1, RowBytes: 1}}, maxTokens, false,
		},
	} {
		_, err := NewLayout(tc.sections, tc.tokens)
		if tc.ok {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, ErrInvalidPage, name)
		}
	}
}

// headerOn returns the encoded header of a page that has the given shape, and
// the size of its file. Nothing keeps it from being impossible.
func headerOn(tokens, pageTokens, media int, sections []Section) ([]byte, int64) {
	h := &Header{Fingerprint: testFingerprint(1), PageTokens: pageTokens, Tokens: make([]int32, tokens), Media: make([]Media, media)}
	h.Key = ChainKey(h.Parent, h.Tokens, h.Media)
	for _, s := range sections {
		raw := int64(tokens) * int64(s.RowBytes)
		h.Sections = append(h.Sections, StoredSection{Section: s, Raw: raw, Stored: raw})
	}
	h.place()
	return h.encode(), h.FileBytes
}

func TestLimitsOfAHeader(t *testing.T) {
	row := func(n uint32) []Section { return []Section{{RowBytes: n}} }
	for name, tc := range map[string]struct {
		tokens, pageTokens, media int
		sections                  []Section
		ok                        bool
	}{
		"most tokens":        {maxTokens, maxTokens, 0, row(1), true},
		"too many tokens":    {maxTokens + 1, maxTokens + 1, 0, row(1), false},
		"most page tokens":   {1, maxTokens, 0, row(1), true},
		"too large a page":   {1, maxTokens + 1, 0, row(1), false},
		"fewer page tokens":  {2, 1, 0, row(1), false},
		"no token":           {0, 1, 0, row(1), false},
		"most media":         {1, 1, maxMedia, row(1), true},
		"too many media":     {1, 1, maxMedia + 1, row(1), false},
		"most sections":      {1, 1, 0, manySections(maxSections), true},
		"too many sections":  {1, 1, 0, manySections(maxSections + 1), false},
		"no section":         {1, 1, 0, nil, false},
		"largest row":        {1, 1, 0, row(maxRowBytes), true},
		"too large a row":    {1, 1, 0, row(maxRowBytes + 1), false},
		"no row":             {1, 1, 0, row(0), false},
		"largest layout":     {maxTokens, maxTokens, 0, row(maxLayoutBytes / maxTokens), true},
		"too large a layout": {maxTokens, maxTokens, 0, append(row(maxLayoutBytes/maxTokens), Section{Layer: 1, RowBytes: 1}), false},
		"everything":         {maxTokens, maxTokens, maxMedia, manySections(maxSections), true},
	} {
		t.Run(name, func(t *testing.T) {
			region, fileBytes := headerOn(tc.tokens, tc.pageTokens, tc.media, tc.sections)
			h, err := decodeHeader(region, fileBytes)
			if !tc.ok {
				require.ErrorIs(t, err, ErrDamaged)
				return
			}
			require.NoError(t, err)
			require.Equal(t, region, h.encode())
			if name == "everything" {
				require.EqualValues(t, alignUp(maxHeaderBytes), len(region))
			}
			_, err = decodeHeader(region, fileBytes+1)
			require.ErrorIs(t, err, ErrDamaged)
		})
	}
}

func TestLimitOfPageTokens(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.PageTokens = maxTokens })
	require.NoError(t, open(t, o).Close())
	o.PageTokens++
	_, err := Open(ctx, o)
	require.ErrorIs(t, err, ErrOptions)
}

func TestLimitOfMediaInAPut(t *testing.T) {
	s := open(t, testOptions(t))
	media := make([]Media, maxMedia+1)
	p := faultPage(t, s.opt.Fingerprint, 0, prompt(1, testTokens))
	p.Media = media
	require.ErrorIs(t, s.Put(ctx, p), ErrInvalidPage)
	p.Media = media[:maxMedia]
	fillRows(p.Layout, p.Key(), p.Payload)
	require.NoError(t, s.Put(ctx, p))
	refs := s.Chain(ctx, p.Tokens, p.Media)
	require.Len(t, refs, 1)
	buf := make([]byte, p.Layout.Size())
	require.NoError(t, s.Read(ctx, refs[0], p.Tokens, p.Layout, buf))
	require.Equal(t, p.Payload, buf)
}

// TestHeadersAroundTheFirstRead has headers that just fit what is read first,
// and just do not.
func TestHeadersAroundTheFirstRead(t *testing.T) {
	for _, tokens := range []int{964, 965, 966} {
		p := faultPage(t, testFingerprint(1), 0, prompt(1, tokens))
		size := headerBytes(tokens, 0, 2)
		require.Equal(t, tokens <= 965, size <= firstReadBytes)
		buf := make([]byte, p.Layout.Size())
		_, err := readFile(t, encodeFile(t, p, tokens, false), p.Layout, buf)
		require.NoError(t, err)
		require.Equal(t, p.Payload, buf)
	}
}

func TestLimitOfAManifest(t *testing.T) {
	for _, size := range []int{maxManifestBytes, maxManifestBytes + 1} {
		o := testOptions(t)
		s := open(t, o)
		require.NoError(t, s.Close())
		path := filePath(o.Local.Root, Name{Fingerprint: o.Fingerprint, Class: ClassManifest})
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		text = append(text, bytes.Repeat([]byte(" "), size-len(text))...)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		tier := newDirTier(quickFS, o.Local.Root, dirOptions{Create: true})
		m, err := readManifest(ctx, tier, o.Fingerprint)
		if size <= maxManifestBytes {
			require.NoError(t, err)
			require.Equal(t, o.Identity, m.Identity)
		} else {
			require.ErrorIs(t, err, ErrDamaged)
		}
		require.NoError(t, tier.Close())
	}
}

func TestLimitOfTails(t *testing.T) {
	s := open(t, testOptions(t))
	for i := range maxTails {
		putFaultTail(t, s, int32(i))
	}
	require.Equal(t, maxTails, s.Stats().Local.Tails, "as many as there may be are kept")
	putFaultTail(t, s, maxTails)
	require.Equal(t, maxTails, s.Stats().Local.Tails)
	require.Len(t, s.Chain(ctx, []int32{maxTails, 7}, nil), 1, "the new one is never the one that goes")
}

// putFaultTail stores a tail that continues no other.
func putFaultTail(t *testing.T, s *Store, first int32) {
	t.Helper()
	require.NoError(t, s.Put(ctx, faultPage(t, s.opt.Fingerprint, 0, []int32{first, 7})))
}

func TestLimitOfQueuedJobs(t *testing.T) {
	b := newBackground()
	hold, begun := make(chan struct{}), make(chan struct{})
	b.submit("first", func(context.Context) { close(begun); <-hold })
	<-begun // it waits in no queue any more
	ran := 0
	for i := range maxQueuedJobs + 1 {
		b.submit(i, func(context.Context) { ran++ })
		b.submit(i, func(context.Context) { ran += 1_000_000 }) // the same key is queued already
	}
	close(hold)
	require.NoError(t, b.wait(ctx))
	require.Equal(t, maxQueuedJobs, ran, "the last one found the queue full")
	require.NoError(t, b.close(time.Minute))
}

func TestLimitOfKnownDirectories(t *testing.T) {
	tier := newDirTier(quickFS, filepath.Join(t.TempDir(), "root"), dirOptions{Create: true})
	require.NoError(t, tier.ensureDir(tier.base))
	for i := len(tier.known); i < maxKnownDirs-1; i++ {
		tier.known[string(rune(i))] = true
	}
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "a")))
	require.Len(t, tier.known, maxKnownDirs, "as many as there may be are remembered")
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "b")))
	require.Len(t, tier.known, 1, "one more, and the others are forgotten")
	require.NoError(t, tier.ensureDir(filepath.Join(tier.base, "a")), "and found again")
	require.NoError(t, tier.Close())
}

// TestTransfersAroundAStep moves files of just a step, one byte less and one
// more through an isolated tier.
func TestTransfersAroundAStep(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	for i, size := range []int{stepBytes - 1, stepBytes, stepBytes + 1, 2*stepBytes + 1} {
		content := bytes.Repeat([]byte{1, 2, 3, 5, 7}, size/5+1)[:size]
		up, err := s.remote.Create(ctx, tierPage(byte(i)))
		require.NoError(t, err)
		require.NoError(t, up.Write(ctx, content))
		_, err = up.Commit(ctx, time.Now())
		require.NoError(t, err)
		blob, err := s.remote.Open(ctx, tierPage(byte(i)))
		require.NoError(t, err)
		got := make([]byte, size)
		require.NoError(t, blob.ReadAt(ctx, got, 0))
		require.True(t, bytes.Equal(content, got))
		require.Error(t, blob.ReadAt(ctx, got, 1), "the file ends first")
		blob.Close()
	}
}
