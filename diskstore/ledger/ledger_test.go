package ledger

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func encoded(t *testing.T, l *Ledger) []byte {
	t.Helper()
	content, err := l.Encode()
	require.NoError(t, err)
	return content
}

func TestLedgerFile(t *testing.T) {
	now := time.Date(2026, 3, 1, 23, 59, 0, 0, time.UTC)
	l := &Ledger{Bytes: 5, Added: 9, Counts: 2, Counted: now, Took: time.Second, Evicted: now}
	l.setClaim("a", 7, now)
	for day := range 2 * ledgerDays {
		l.wrote(dayOf(now.AddDate(0, 0, day)), int64(day+1))
	}
	require.Len(t, l.Days(), ledgerDays)
	require.Equal(t, DayWritten{Day: "2026-04-29", Bytes: 60}, l.Days()[ledgerDays-1])
	require.EqualValues(t, 12, l.Figure())
	content := encoded(t, l)
	again, err := Decode(content)
	require.NoError(t, err)
	require.Equal(t, l, again)

	for i := range content {
		for bit := range 8 {
			content[i] ^= 1 << bit
			_, err := Decode(content)
			require.ErrorIs(t, err, pagefile.ErrDamaged, "byte %d bit %d", i, bit)
			content[i] ^= 1 << bit
		}
		_, err := Decode(content[:i])
		require.ErrorIs(t, err, pagefile.ErrDamaged, "cut at %d", i)
	}
	for name, bad := range map[string]*Ledger{
		"negative":  {Bytes: -1},
		"overflow":  {Bytes: 1 << 61, Claims: map[string]Claim{"a": {Bytes: 1 << 61}, "b": {Bytes: 1 << 61}}},
		"claim":     {Claims: map[string]Claim{"a": {Bytes: -5}}},
		"day":       {Written: map[string]int64{"yesterday": 1}},
		"no figure": {Counts: -1},
	} {
		content := encoded(t, bad)
		_, err = Decode(content)
		require.ErrorIs(t, err, pagefile.ErrDamaged, name)
	}
}

// TestForgedHits has values in a ledger that no store wrote, with the right checksum. The
// ledger stays valid, and the values take little memory.
func TestForgedHits(t *testing.T) {
	good := storetest.Fingerprint(7).String()
	read := func(hits map[string]Hits) *Ledger {
		content := encoded(t, &Ledger{Bytes: 5, Counts: 1, Hits: hits})
		l, err := Decode(content)
		require.NoError(t, err)
		require.EqualValues(t, 5, l.Bytes)
		return l
	}
	far := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	l := read(map[string]Hits{
		"../../etc": {Pages: 1}, "": {Pages: 1}, good[:63]: {Pages: 2}, good + "0": {Pages: 2},
		storetest.Fingerprint(1).String(): {Pages: -1}, storetest.Fingerprint(2).String(): {Pages: mostHits + 1},
		good: {Pages: mostHits, Last: far},
	})
	require.Equal(t, map[string]Hits{good: {Pages: mostHits, Last: far}}, l.Hits)
	l.Hit(storetest.Fingerprint(7), Hits{Pages: 5, Last: time.Now()})
	l.Hit(storetest.Fingerprint(8), Hits{Pages: mostHits})
	l.Hit(storetest.Fingerprint(9), Hits{Pages: mostHits})
	require.Equal(t, Hits{Pages: mostHits, Last: far}, l.AllHits())

	// Of too many fingerprints the most recently read stay, also after a store adds hits.
	many := make(map[string]Hits)
	for i := range 5000 {
		many[fmt.Sprintf("%064x", i)] = Hits{Pages: 1, Last: far.Add(time.Duration(i-6000) * time.Hour)}
	}
	l = read(many)
	require.Len(t, l.Hits, maxHits)
	require.Contains(t, l.Hits, fmt.Sprintf("%064x", 4999))
	l.Hit(storetest.Fingerprint(1), Hits{Pages: 1, Last: far})
	require.Len(t, l.Hits, maxHits)
	require.Contains(t, l.Hits, storetest.Fingerprint(1).String())
	require.NotContains(t, l.Hits, fmt.Sprintf("%064x", 5000-maxHits))
	content := encoded(t, l)
	require.Less(t, len(content), 64<<10)
}

// TestDaysOfAClockThatWasAhead: days in the future do not push out the present day, and with
// it the day's limit.
func TestDaysOfAClockThatWasAhead(t *testing.T) {
	l := new(Ledger)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for day := range 2 * ledgerDays {
		l.wrote(dayOf(now.AddDate(1, 0, day)), 1)
	}
	for range 3 {
		l.wrote(dayOf(now), 5)
	}
	require.EqualValues(t, 15, l.Written[dayOf(now)])
	require.Len(t, l.Days(), ledgerDays)
}

// paper is a ledger in memory, of one process.
type paper struct {
	content []byte
	id      string // of the process; "id" by default
	lost    int    // number of changes to compute again, as after a failed If-Match
	blank   bool   // Account calls no change and changes nothing
	left    int64
}

func (p *paper) Account(_ context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	if change == nil {
		return p.content, nil
	}
	if p.blank {
		return nil, nil
	}
	content, err := change(p.content, cmp.Or(p.id, "id"))
	for ; err == nil && p.lost > 0; p.lost-- {
		content, err = change(p.content, cmp.Or(p.id, "id"))
	}
	if err == nil {
		p.content = content
	}
	return content, err
}

func (p *paper) Left() int64 { return p.left }

// TestSleepCountsForOthers: this machine slept. Other machines may have taken its claims for a
// dead process's.
func TestSleepCountsForOthers(t *testing.T) {
	b := NewBook(new(paper), 0, 0, time.Now)
	addPage(t, b)
	require.Positive(t, b.freeLocked())
	b.updated = storetest.Slept(tier.ClaimLife)
	require.Zero(t, b.freeLocked())
}

// TestChangeComputedSeveralTimes: a tier without locks computes a change again when another
// process was faster. Only the last result counts.
func TestChangeComputedSeveralTimes(t *testing.T) {
	medium := new(paper)
	b := NewBook(medium, 0, 0, time.Now)
	for i := range 5 {
		medium.lost = i
		addPage(t, b)
		medium.lost = i
		require.NoError(t, b.Record(t.Context()))
		require.Zero(t, medium.lost)
		l, err := b.Read(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, (i+1)*pagefile.PageAlign, l.Bytes)
		require.Equal(t, b.claimed, l.Claimed())
	}
	full := NewBook(&paper{lost: 3}, 1, 0, time.Now)
	_, err := full.Reserve(t.Context(), pagefile.PageAlign)
	require.ErrorIs(t, err, ErrNotCounted, "the second call has not run: the first was refused")
}

// TestCountWhereNobodyKnowsWhoLives: in an object store a claim ends by its age.
func TestCountWhereNobodyKnowsWhoLives(t *testing.T) {
	now := time.Now()
	medium := &paper{id: "other"}
	clock := func() time.Time { return now }
	other, mine := NewBook(medium, 0, 0, clock), NewBook(medium, 0, 0, clock)
	_, err := other.Reserve(t.Context(), pagefile.PageAlign)
	require.NoError(t, err)
	medium.id = "mine"
	count := func(living map[string]bool) map[string]Claim {
		began, err := mine.BeginCount(t.Context())
		require.NoError(t, err)
		began.Living = living
		require.NoError(t, mine.EndCount(t.Context(), began, 0))
		l, err := mine.Read(t.Context())
		require.NoError(t, err)
		return l.Claims
	}
	require.Contains(t, count(nil), "other")
	now = now.Add(tier.ClaimLife + time.Second)
	require.NotContains(t, count(nil), "other")
	medium.id = "other"
	_, err = other.Reserve(t.Context(), pagefile.PageAlign)
	require.NoError(t, err)
	medium.id = "mine"
	require.NotContains(t, count(map[string]bool{"mine": true}), "other", "its process has ended")
}

// TestTierThatAsksForNoChange: no caller hangs with a tier whose Account is a stub.
func TestTierThatAsksForNoChange(t *testing.T) {
	medium := &paper{blank: true}
	b := NewBook(medium, 0, 0, time.Now)
	_, err := b.Reserve(t.Context(), pagefile.PageAlign)
	require.ErrorIs(t, err, errNotAsked)
	require.ErrorIs(t, b.Record(t.Context()), errNotAsked)
	medium.blank = false
	room, err := b.Reserve(t.Context(), pagefile.PageAlign)
	require.NoError(t, err)
	room.Cancel()
}

// between is a paper that calls a function after a change is recorded, and before its book knows.
type between struct {
	paper
	recorded func()
}

func (m *between) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	content, err := m.paper.Account(ctx, change)
	m.recorded()
	return content, err
}

// TestGivingBackWhileReservationsEnd: room that becomes free while a claim is given back is
// either still claimed or cannot be taken.
func TestGivingBackWhileReservationsEnd(t *testing.T) {
	const n = pagefile.PageAlign
	for range 5_000 {
		m := &between{recorded: func() {}}
		b := NewBook(m, 0, 0, time.Now)
		room, err := b.Reserve(t.Context(), n)
		require.NoError(t, err)
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			room.Cancel()
		}()
		m.recorded = func() {
			if taken, ok := b.take(n); ok {
				require.GreaterOrEqual(t, Read(m.content).Claims["id"].Bytes, int64(n), "room was taken that is not claimed")
				taken.Cancel()
			}
		}
		require.NoError(t, b.GiveBack(t.Context()))
		<-cancelled
	}
}

// TestAFileThatStaysIsClaimed: a page could not be removed, and the removal was not recorded
// because files were counted meanwhile. The count has missed the file.
func TestAFileThatStaysIsClaimed(t *testing.T) {
	m := &paper{left: pagefile.PageAlign}
	b := NewBook(m, 0, 0, time.Now)
	require.NoError(t, b.GiveBack(t.Context()))
	require.EqualValues(t, pagefile.PageAlign, Read(m.content).Figure())
	m.left = 0
	require.NoError(t, b.GiveBack(t.Context()))
	require.Zero(t, Read(m.content).Figure())
}

// doubtful is a paper whose changes may fail: after they were written, or before they begin.
type doubtful struct {
	paper
	after, before bool
	late          []func([]byte, string) ([]byte, error) // changes that did not begin
}

func (d *doubtful) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	if d.before {
		d.late = append(d.late, change)
		return nil, tier.ErrTierTimeout
	}
	content, err := d.paper.Account(ctx, change)
	if err == nil && d.after {
		return nil, tier.ErrTierTimeout
	}
	return content, err
}

// twoPages is a book with a budget of two pages, after a count that found none.
func twoPages(t *testing.T) (*doubtful, *Book) {
	m := &doubtful{paper: paper{content: encoded(t, &Ledger{Counts: 1})}}
	b := NewBook(m, 2*pagefile.PageAlign, 0, time.Now)
	require.NoError(t, b.Refresh(t.Context()))
	return m, b
}

// addPage reserves room for a page and fills it.
func addPage(t *testing.T, b *Book) {
	t.Helper()
	room, err := b.Reserve(t.Context(), pagefile.PageAlign)
	require.NoError(t, err)
	room.Finish(pagefile.PageAlign)
}

// TestAChangeInDoubtIsRecordedOnce: the ledger was written, and the answer came too late. The
// next change finds its own former result and adds no byte twice.
func TestAChangeInDoubtIsRecordedOnce(t *testing.T) {
	day := dayOf(time.Now())
	for failures := range 3 {
		m, b := twoPages(t)
		addPage(t, b)
		b.Hit(storetest.Fingerprint(1))
		m.after = true
		for range failures {
			require.ErrorIs(t, b.Record(t.Context()), tier.ErrTierTimeout)
		}
		m.after = false
		addPage(t, b)
		require.NoError(t, b.Record(t.Context()))
		l := Read(m.content)
		require.EqualValues(t, b.Budget, l.Figure(), "after %d failures", failures)
		require.EqualValues(t, b.Budget, l.Added)
		require.EqualValues(t, 1, l.AllHits().Pages)
		require.InDelta(t, b.Budget, l.Written[day], pagefile.PageAlign, "the day may have changed")
	}
}

// TestAChangeThatFailedAfterOneInDoubt: of two changes in a row that failed, only the first was
// written.
func TestAChangeThatFailedAfterOneInDoubt(t *testing.T) {
	m, b := twoPages(t)
	addPage(t, b)
	m.after = true
	require.Error(t, b.Record(t.Context()))
	written := m.content
	require.Error(t, b.Record(t.Context()))
	m.after, m.content = false, written
	require.NoError(t, b.Record(t.Context()))
	require.EqualValues(t, pagefile.PageAlign, Read(m.content).Figure())
}

// TestAChangeThatOthersFollowed: another process has changed the ledger since a change in doubt.
// Bytes count twice rather than not at all.
func TestAChangeThatOthersFollowed(t *testing.T) {
	for _, was := range []bool{true, false} {
		m, b := twoPages(t)
		addPage(t, b)
		before := m.content
		m.after = true
		require.Error(t, b.Record(t.Context()))
		if m.after = false; !was {
			m.content = before
		}
		l := Read(m.content)
		l.Added, l.Bytes = l.Added+1, l.Bytes+1
		m.content = encoded(t, l)
		require.NoError(t, b.Record(t.Context()))
		require.GreaterOrEqual(t, Read(m.content).Figure(), int64(pagefile.PageAlign+1))
	}
}

// TestAChangeThatWasGivenUpIsNotMade: a change waited for the ledger's lock until its caller left,
// and gets the lock after later changes. Its figures are old.
func TestAChangeThatWasGivenUpIsNotMade(t *testing.T) {
	m, b := twoPages(t)
	addPage(t, b)
	m.before = true
	require.ErrorIs(t, b.Record(t.Context()), tier.ErrTierTimeout)
	m.before = false
	addPage(t, b)
	require.Len(t, m.late, 1)
	if content, err := m.late[0](m.content, "id"); err == nil {
		m.content = content
	}
	require.NoError(t, b.Record(t.Context()))
	require.EqualValues(t, b.Budget, Read(m.content).Figure(), "two pages")
}

// TestWhatWasFreedBeforeAChangeThatDidNotBegin is subtracted by the next change.
func TestWhatWasFreedBeforeAChangeThatDidNotBegin(t *testing.T) {
	m, b := twoPages(t)
	addPage(t, b)
	require.NoError(t, b.Record(t.Context()))
	b.Release(pagefile.PageAlign, b.State().Counts)
	m.before = true
	require.Error(t, b.Record(t.Context()))
	m.before = false
	require.NoError(t, b.Record(t.Context()))
	require.Zero(t, Read(m.content).Figure())
}

// TestManyProcessesThatWait: each of many processes has stored one page and keeps its claim. They leave
// most of the budget, and of the day's writes, to pages.
func TestManyProcessesThatWait(t *testing.T) {
	const budget, page, processes = 64 << 20, 48 << 10, 200
	for name, limits := range map[string][2]int64{"budget": {budget, 0}, "day": {0, budget}} {
		t.Run(name, func(t *testing.T) {
			m := &paper{content: encoded(t, &Ledger{Counts: 1})}
			for n := range processes {
				m.id = fmt.Sprint(n)
				room, err := NewBook(m, limits[0], limits[1], time.Now).Reserve(t.Context(), page)
				require.NoError(t, err, "process %d", n)
				room.Finish(page)
			}
			require.LessOrEqual(t, Read(m.content).Figure(), int64(budget/claimsShare+processes*page))
		})
	}
}
