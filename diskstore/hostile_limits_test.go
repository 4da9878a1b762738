package diskstore

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/stretchr/testify/require"
)

// Every limit of the page format is tried on both sides: as an argument, and in
// the header of a file, where nobody can be trusted. Limits that other tests try
// are those of the breaker (TestBreaker), quarantine
// (TestDamageIsQuarantinedAndRepaired), recency (TestTouchIsThrottled), orphans
// (TestStaleTemporaryFilesAreCleaned) and free space
// (TestUnlimitedTierKeepsSomeOfTheDiskFree).

// manySections returns n sections of one byte per row.
func manySections(n int) []pagefile.Section {
	sections := make([]pagefile.Section, n)
	for i := range sections {
		sections[i] = pagefile.Section{Group: uint16(i >> 8), Layer: uint16(i & 0xff), RowBytes: 1}
	}
	return sections
}

func TestLimitsOfALayout(t *testing.T) {
	for name, tc := range map[string]struct {
		sections []pagefile.Section
		tokens   int
		ok       bool
	}{
		"most tokens":       {manySections(1), pagefile.MaxTokens, true},
		"too many tokens":   {manySections(1), pagefile.MaxTokens + 1, false},
		"one token":         {manySections(1), 1, true},
		"no token":          {manySections(1), 0, false},
		"most sections":     {manySections(pagefile.MaxSections), 1, true},
		"too many sections": {manySections(pagefile.MaxSections + 1), 1, false},
		"no section":        {nil, 1, false},
		"largest row":       {[]pagefile.Section{{RowBytes: pagefile.MaxRowBytes}}, 1, true},
		"too large a row":   {[]pagefile.Section{{RowBytes: pagefile.MaxRowBytes + 1}}, 1, false},
		"largest layout":    {[]pagefile.Section{{RowBytes: pagefile.MaxLayoutBytes / pagefile.MaxTokens}}, pagefile.MaxTokens, true},
		"too large a layout": {
			[]pagefile.Section{{RowBytes: pagefile.MaxLayoutBytes / pagefile.MaxTokens}, {Layer: 1, RowBytes: 1}}, pagefile.MaxTokens, false,
		},
	} {
		_, err := pagefile.NewLayout(tc.sections, tc.tokens)
		if tc.ok {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, pagefile.ErrInvalidPage, name)
		}
	}
}

// headerOn returns the encoded header of a page that has the given shape, and
// the size of its file. Nothing keeps it from being impossible.
func headerOn(tokens, pageTokens, media int, sections []pagefile.Section) ([]byte, int64) {
	h := &pagefile.Header{Fingerprint: testFingerprint(1), PageTokens: pageTokens, Tokens: make([]int32, tokens), Media: make([]pagefile.Media, media)}
	h.Key = pagefile.ChainKey(h.Parent, h.Tokens, h.Media)
	for _, s := range sections {
		raw := int64(tokens) * int64(s.RowBytes)
		h.Sections = append(h.Sections, pagefile.StoredSection{Section: s, Raw: raw, Stored: raw})
	}
	h.Place()
	return h.Encode(), h.FileBytes
}

func TestLimitsOfAHeader(t *testing.T) {
	row := func(n uint32) []pagefile.Section { return []pagefile.Section{{RowBytes: n}} }
	for name, tc := range map[string]struct {
		tokens, pageTokens, media int
		sections                  []pagefile.Section
		ok                        bool
	}{
		"most tokens":        {pagefile.MaxTokens, pagefile.MaxTokens, 0, row(1), true},
		"too many tokens":    {pagefile.MaxTokens + 1, pagefile.MaxTokens + 1, 0, row(1), false},
		"most page tokens":   {1, pagefile.MaxTokens, 0, row(1), true},
		"too large a page":   {1, pagefile.MaxTokens + 1, 0, row(1), false},
		"fewer page tokens":  {2, 1, 0, row(1), false},
		"no token":           {0, 1, 0, row(1), false},
		"most media":         {1, 1, pagefile.MaxMedia, row(1), true},
		"too many media":     {1, 1, pagefile.MaxMedia + 1, row(1), false},
		"most sections":      {1, 1, 0, manySections(pagefile.MaxSections), true},
		"too many sections":  {1, 1, 0, manySections(pagefile.MaxSections + 1), false},
		"no section":         {1, 1, 0, nil, false},
		"largest row":        {1, 1, 0, row(pagefile.MaxRowBytes), true},
		"too large a row":    {1, 1, 0, row(pagefile.MaxRowBytes + 1), false},
		"no row":             {1, 1, 0, row(0), false},
		"largest layout":     {pagefile.MaxTokens, pagefile.MaxTokens, 0, row(pagefile.MaxLayoutBytes / pagefile.MaxTokens), true},
		"too large a layout": {pagefile.MaxTokens, pagefile.MaxTokens, 0, append(row(pagefile.MaxLayoutBytes/pagefile.MaxTokens), pagefile.Section{Layer: 1, RowBytes: 1}), false},
		"everything":         {pagefile.MaxTokens, pagefile.MaxTokens, pagefile.MaxMedia, manySections(pagefile.MaxSections), true},
	} {
		t.Run(name, func(t *testing.T) {
			region, fileBytes := headerOn(tc.tokens, tc.pageTokens, tc.media, tc.sections)
			h, err := pagefile.DecodeHeader(region, fileBytes)
			if !tc.ok {
				require.ErrorIs(t, err, pagefile.ErrDamaged)
				return
			}
			require.NoError(t, err)
			require.Equal(t, region, h.Encode())
			if name == "everything" {
				require.EqualValues(t, pagefile.AlignUp(pagefile.MaxHeaderBytes), len(region))
			}
			_, err = pagefile.DecodeHeader(region, fileBytes+1)
			require.ErrorIs(t, err, pagefile.ErrDamaged)
		})
	}
}

func TestLimitOfPageTokens(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.PageTokens = pagefile.MaxTokens })
	require.NoError(t, open(t, o).Close())
	o.PageTokens++
	_, err := Open(ctx, o)
	require.ErrorIs(t, err, ErrOptions)
}

func TestLimitOfMediaInAPut(t *testing.T) {
	s := open(t, testOptions(t))
	media := make([]pagefile.Media, pagefile.MaxMedia+1)
	p := faultPage(t, s.opt.Fingerprint, 0, prompt(1, testTokens))
	p.Media = media
	require.ErrorIs(t, s.Put(ctx, p), pagefile.ErrInvalidPage)
	p.Media = media[:pagefile.MaxMedia]
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
		size := pagefile.HeaderBytes(tokens, 0, 2)
		require.Equal(t, tokens <= 965, size <= pagefile.FirstReadBytes)
		buf := make([]byte, p.Layout.Size())
		_, err := readFile(t, encodeFile(t, p, tokens, false), p.Layout, buf)
		require.NoError(t, err)
		require.Equal(t, p.Payload, buf)
	}
}

func TestLimitOfAManifest(t *testing.T) {
	for _, size := range []int{tier.MaxManifestBytes, tier.MaxManifestBytes + 1} {
		o := testOptions(t)
		s := open(t, o)
		require.NoError(t, s.Close())
		path := filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		text = append(text, bytes.Repeat([]byte(" "), size-len(text))...)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		tr := dir.New(quickFS, o.Local.Root, dir.Options{Create: true})
		m, err := tier.ReadManifest(ctx, tr, o.Fingerprint)
		if size <= tier.MaxManifestBytes {
			require.NoError(t, err)
			require.Equal(t, o.Identity, m.Identity)
		} else {
			require.ErrorIs(t, err, pagefile.ErrDamaged)
		}
		require.NoError(t, tr.Close())
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
	tier := dir.New(quickFS, filepath.Join(t.TempDir(), "root"), dir.Options{Create: true})
	require.NoError(t, tier.EnsureDir(tier.Base))
	for i := len(tier.Known); i < dir.MaxKnownDirs-1; i++ {
		tier.Known[string(rune(i))] = true
	}
	require.NoError(t, tier.EnsureDir(filepath.Join(tier.Base, "a")))
	require.Len(t, tier.Known, dir.MaxKnownDirs, "as many as there may be are remembered")
	require.NoError(t, tier.EnsureDir(filepath.Join(tier.Base, "b")))
	require.Len(t, tier.Known, 1, "one more, and the others are forgotten")
	require.NoError(t, tier.EnsureDir(filepath.Join(tier.Base, "a")), "and found again")
	require.NoError(t, tier.Close())
}

// TestTransfersAroundAStep moves files of just a step, one byte less and one
// more through an isolated tier.
func TestTransfersAroundAStep(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	for i, size := range []int{pagefile.StepBytes - 1, pagefile.StepBytes, pagefile.StepBytes + 1, 2*pagefile.StepBytes + 1} {
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
