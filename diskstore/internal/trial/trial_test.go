package trial

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const rows = 32 << 20

// key is a page's key, by its first byte.
func key(b byte) pagefile.Key { return pagefile.Key{b, 1} }

// compressed is how many of all first bytes of keys ask for compressed pages.
func compressed(t *Trial) (n int) {
	for b := range 256 {
		if t.Compress(key(byte(b))) {
			n++
		}
	}
	return n
}

// conversation gives pages one after the other.
type conversation struct{ n uint32 }

func (c *conversation) page() (p Page) {
	binary.LittleEndian.PutUint32(p.Parent[:], c.n)
	c.n++
	binary.LittleEndian.PutUint32(p.Key[:], c.n)
	return p
}

// reads notes n reads of each form.
func reads(t *Trial, n int, raw, compressed time.Duration) (last Verdict, changes int) {
	var c conversation
	for range n {
		for form, took := range map[Form]time.Duration{Raw: raw, Compressed: compressed} {
			v, changed := t.Read(c.page(), form, rows, took)
			last = v
			if changed {
				changes++
			}
		}
	}
	return last, changes
}

// Pages take turns until both forms are known, and then take the quicker form, except a few.
func TestVerdictFollowsTheReads(t *testing.T) {
	tr := New()
	require.Equal(t, 128, compressed(tr))
	v, changes := reads(tr, least-1, 10*time.Millisecond, 8*time.Millisecond)
	require.False(t, v.Known)
	require.Zero(t, changes)
	require.False(t, tr.Changed())

	v, changes = reads(tr, 1, 10*time.Millisecond, 8*time.Millisecond)
	require.Equal(t, 1, changes)
	require.True(t, tr.Changed())
	require.True(t, v.Known)
	require.Equal(t, Compressed, v.Form)
	require.InDelta(t, 0.010/rows*1e9, v.Seconds[Raw], 1e-9)
	require.InDelta(t, 0.008/rows*1e9, v.Seconds[Compressed], 1e-9)
	require.Equal(t, 240, compressed(tr))

	v, changes = reads(tr, kept, 10*time.Millisecond, 10*time.Millisecond+time.Microsecond)
	require.Equal(t, 1, changes, "compressed pages take longer now")
	require.Equal(t, Raw, v.Form)
	require.Equal(t, 16, compressed(tr))

	v, changes = reads(tr, kept, 10*time.Millisecond, 9800*time.Microsecond)
	require.Zero(t, changes, "two percent are chance")
	require.Equal(t, Raw, v.Form)
	_, changes = reads(tr, kept, 10*time.Millisecond, 9*time.Millisecond)
	require.Equal(t, 1, changes)
}

// A few reads that take very long, and times that cannot be, decide nothing.
func TestOutliersDecideNothing(t *testing.T) {
	tr := New()
	reads(tr, least, 10*time.Millisecond, 8*time.Millisecond)
	_, changes := reads(tr, least/2-1, 10*time.Millisecond, time.Hour)
	require.Zero(t, changes)
	for _, bad := range []struct {
		rows int
		took time.Duration
	}{{0, 1}, {-1, 1}, {1, 0}, {1, -1}} {
		for range kept {
			_, changed := tr.Read(Page{}, Compressed, bad.rows, bad.took)
			require.False(t, changed)
		}
	}
	v, _ := tr.Read(Page{}, Raw, rows, 10*time.Millisecond)
	require.Equal(t, Compressed, v.Form)
}

// Pages that do not become smaller are raw, and only a few are tried.
func TestPagesThatDoNotShrink(t *testing.T) {
	tr := New()
	for range least - 1 {
		_, changed := tr.Encoded(false)
		require.False(t, changed)
	}
	tr.Encoded(true)
	for i := range least {
		v, changed := tr.Encoded(false)
		require.Equal(t, i == least-1, changed)
		require.Equal(t, i == least-1, v.Known)
	}
	require.Equal(t, 16, compressed(tr))
	v, changed := tr.Encoded(false)
	require.False(t, changed)
	require.Equal(t, Raw, v.Form)
}

// Pages that no longer become smaller are raw, and reads of before do not change that to and fro.
func TestPagesThatShrankOnce(t *testing.T) {
	tr := New()
	v, _ := reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	require.Equal(t, Compressed, v.Form)
	for i := range least {
		_, changed := tr.Encoded(false)
		require.Equal(t, i == least-1, changed)
	}
	for range least - 1 {
		v, changed := tr.Read(Page{}, Compressed, rows, 30*time.Millisecond)
		require.False(t, changed)
		require.Equal(t, Raw, v.Form)
		_, changed = tr.Encoded(false)
		require.False(t, changed)
	}
	_, changes := reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	require.Zero(t, changes, "pages of before")
	tr.Encoded(true)
	_, changes = reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	require.Equal(t, 1, changes)
}

// TestCachedAndColdReadsAreNotMixed: raw pages are the quicker ones in the page cache and on the disk. Most of
// them are read from the disk, and most compressed ones from the page cache.
func TestCachedAndColdReadsAreNotMixed(t *testing.T) {
	tr := New()
	reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	require.Equal(t, Compressed, tr.verdict.Form)
	changes := 0
	at := func(page Page, form Form, speed float64) { // in 10⁹ bytes per second
		if _, changed := tr.Read(page, form, rows, time.Duration(float64(rows)/speed)); changed {
			changes++
		}
	}
	var c conversation
	for range 100 {
		c.n++
		for i := range 64 { // new conversations, in the page cache: the first page and one in sixteen are raw
			if i%16 == 0 {
				at(c.page(), Raw, 7.5)
			} else {
				at(c.page(), Compressed, 2.8)
			}
		}
		c.n++
		for i := range 31 { // one from before the verdict, on the disk; its last page is compressed
			form := Form((i + 1) % 2)
			at(c.page(), form, []float64{Raw: 1.57, Compressed: 1.41}[form])
		}
	}
	require.Equal(t, Raw, tr.verdict.Form)
	require.Equal(t, 1, changes)
}

// TestShortConversationsAreNotMixed: a conversation of few pages is restored from the disk and then from the
// page cache. Raw pages are the quicker ones in both.
func TestShortConversationsAreNotMixed(t *testing.T) {
	tr := New()
	reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	speeds := map[bool][]float64{true: {Raw: 7.5, Compressed: 2.8}, false: {Raw: 1.57, Compressed: 1.41}}
	for n := range uint32(200) {
		for _, cached := range []bool{false, true} {
			c := conversation{n: 100 + 10*n}
			for i := range 6 {
				form := Raw
				if i == 3 {
					form = Compressed
				}
				tr.Read(c.page(), form, rows, time.Duration(float64(rows)/speeds[cached][form]))
			}
		}
	}
	require.Equal(t, Raw, tr.verdict.Form)
	require.Less(t, tr.verdict.Seconds[Raw], tr.verdict.Seconds[Compressed])
}

// A disk that becomes slower for all pages changes nothing.
func TestASlowerDiskChangesNothing(t *testing.T) {
	tr := New()
	reads(tr, kept, 10*time.Millisecond, 8*time.Millisecond)
	var c conversation
	for i := range 640 {
		form, took := Compressed, 16*time.Millisecond
		if i%16 == 0 {
			form, took = Raw, 20*time.Millisecond
		}
		v, changed := tr.Read(c.page(), form, rows, took)
		require.False(t, changed, "page %d", i)
		require.Equal(t, Compressed, v.Form)
	}
}

// The verdict never is that compressed pages come back sooner when they take longer.
func TestCompressedIsNeverSlower(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tr := New()
		var c conversation
		for range rapid.IntRange(1, 400).Draw(r, "reads") {
			form := Form(rapid.IntRange(0, 1).Draw(r, "form"))
			v, _ := tr.Read(c.page(), form, rows, time.Duration(rapid.IntRange(1, 50).Draw(r, "milliseconds"))*time.Millisecond)
			if v.Known && v.Form == Compressed && v.Seconds[Compressed] > v.Seconds[Raw] {
				r.Fatalf("%+v", v)
			}
		}
	})
}

var (
	fingerprint = pagefile.Key{7}
	now         = time.Unix(1e9, 0)
)

func TestRecord(t *testing.T) {
	tr := New()
	reads(tr, least, 10*time.Millisecond, 8*time.Millisecond)
	content, version := tr.Record(nil, fingerprint, 4, now)
	require.True(t, tr.Changed(), "the record is not on the disk yet")
	tr.Recorded(version)
	require.False(t, tr.Changed())
	for name, c := range map[string]struct {
		content     []byte
		fingerprint pagefile.Key
		processors  int
		when        time.Time
		known       bool
	}{
		"later":                  {content, fingerprint, 4, now.Add(time.Hour), true},
		"another fingerprint":    {content, pagefile.Key{8}, 4, now, false},
		"other processors":       {content, fingerprint, 8, now, false},
		"old":                    {content, fingerprint, 4, now.Add(31 * 24 * time.Hour), false},
		"the clock was set back": {content, fingerprint, 4, now.Add(-48 * time.Hour), false},
		"nothing":                {nil, fingerprint, 4, now, false},
		"null":                   {[]byte("null"), fingerprint, 4, now, false},
		"garbage":                {[]byte(`{"a": [`), fingerprint, 4, now, false},
		"a list":                 {[]byte(`[1]`), fingerprint, 4, now, false},
		"a number out of range":  {[]byte(fmt.Sprintf(`{"%s-4":{"raw_s_per_gb":1e999}}`, fingerprint)), fingerprint, 4, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			next := New()
			next.Recall(c.content, c.fingerprint, c.processors, c.when)
			require.Equal(t, c.known, next.verdict.Known)
			if c.known {
				require.Equal(t, tr.verdict, next.verdict)
				require.Equal(t, 240, compressed(next))
				require.False(t, next.Changed())
			}
		})
	}

	other, _ := tr.Record(content, fingerprint, 8, now)
	require.Len(t, parse(other), 2, "two numbers of processors have a verdict each")
	for _, wrong := range []time.Time{now.AddDate(-50, 0, 0), now.AddDate(0, 0, 40)} {
		other, _ := tr.Record(content, pagefile.Key{8}, 4, wrong)
		next := New()
		next.Recall(other, fingerprint, 4, now)
		require.True(t, next.verdict.Known, "another process's clock is wrong")
	}
}

// Foreign entries leave a record, and of many verdicts those of the future and the oldest go, never the new one.
func TestRecordIsBounded(t *testing.T) {
	hostile := map[string]any{strings.Repeat("x", 60000): recorded{When: now}, "short": recorded{When: now}}
	for i := range keptMost {
		hostile[nameOf(pagefile.Key{byte(i), 1}, 1)] = recorded{When: now.AddDate(9, 0, 0)}
	}
	content, err := json.Marshal(hostile)
	require.NoError(t, err)
	tr := New()
	reads(tr, least, 1, 1)
	content, _ = tr.Record(content, fingerprint, 1, now)
	require.Len(t, parse(content), keptMost)
	require.Contains(t, parse(content), nameOf(fingerprint, 1))
	for i := range keptMost + 40 {
		at := now.Add(time.Duration(i) * time.Second)
		name := pagefile.Key{byte(i), byte(i >> 8), 9}
		content, _ = tr.Record(content, name, 99999, at)
		require.LessOrEqual(t, len(content), BytesMax)
		if i%16 == 0 {
			require.Contains(t, parse(content), nameOf(name, 99999))
		}
	}
	require.Len(t, parse(content), keptMost)
	for _, v := range parse(content) {
		require.True(t, v.counts(now.Add(time.Hour)))
	}
}

func TestTrialsAreShared(t *testing.T) {
	tr := New()
	var all sync.WaitGroup
	for i := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			var (
				content []byte
				c       conversation
			)
			for range 50 {
				tr.Read(c.page(), Form(rng.IntN(2)), rows, time.Duration(rng.IntN(100)))
				tr.Encoded(rng.IntN(2) == 0)
				tr.Compress(key(byte(rng.Uint32())))
				content, _ = tr.Record(content, fingerprint, i, now)
			}
		}()
	}
	all.Wait()
}
