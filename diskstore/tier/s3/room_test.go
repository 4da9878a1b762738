package s3

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	ledgers "github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

const (
	worldPage   = 4096
	worldBudget = 128 * worldPage
	skewMost    = 20 * time.Minute
	// inUse is the age up to which a use counts as one of the present, and old that of a page which may go: clocks of
	// two machines may be wrong in both directions.
	inUse = 15 * time.Minute
	old   = inUse + 2*skewMost + tier.ClockSlack
)

// world is a store, some machines that use it, and the truth about its pages in virtual time.
type world struct {
	*fake
	began    time.Time
	passed   atomic.Int64
	machines []*machine
	pages    map[pagefile.Name]*truth
	made     uint32
	wrong    []string
	highest  int64
	sleeper  *machine
	removes  string // the page that the sleeper removes in the request at which it sleeps
}

// truth is what nobody in the world knows: real times.
type truth struct {
	used    time.Time
	written []writtenUse // the earliest first
}

// writtenUse is a use of which others learn: those that collect already look again within usesEvery.
type writtenUse struct{ used, at time.Time }

// known is the last use that all machines know.
func (p *truth) known(now time.Time) (used time.Time) {
	for _, w := range p.written {
		if now.Sub(w.at) > usesEvery {
			used = tier.Later(used, w.used)
		}
	}
	return used
}

// machine is a process on a machine with a clock of its own.
type machine struct {
	w     *world
	tier  *Tier
	book  *ledgers.Book
	room  *room.Collector
	files *counted.Tier
	noted map[pagefile.Name]time.Time // real times of uses that are not written
}

func newWorld(skews ...time.Duration) *world {
	w := &world{began: time.Now(), pages: make(map[pagefile.Name]*truth)}
	w.fake = newFake(w.time)
	for _, skew := range skews {
		now := func() time.Time { return w.time().Add(skew) }
		m := &machine{w: w, tier: w.open(now), noted: make(map[pagefile.Name]time.Time)}
		disk := tier.OnDisk(m.tier)
		m.book = ledgers.NewBook(disk, worldBudget, 0, now)
		pages := names.Of(tiertest.Fingerprint, false)
		m.files = counted.New(disk, m.book, counted.Options{Far: true, Pages: pages})
		m.room = room.NewCollector(m.files, room.Options{
			CountEvery: room.FarCountEvery, Chains: recency.New(disk, pages, now, m.book.Horizon, m.book.Use), Now: now,
			Obsolete: func(context.Context) map[pagefile.Key]bool { return nil },
			Failed:   func(err error) { w.fail("a collection failed: %v", err) },
			Left:     func(info tier.Info, _ bool) { w.left(info.Name) },
			Swept:    func(context.Context) {},
		})
		w.machines = append(w.machines, m)
	}
	return w
}

func (w *world) time() time.Time         { return w.began.Add(time.Duration(w.passed.Load())) }
func (w *world) pass(d time.Duration)    { w.passed.Add(int64(d)) }
func (w *world) fail(f string, a ...any) { w.wrong = append(w.wrong, fmt.Sprintf(f, a...)) }

// left judges the removal of a page.
func (w *world) left(name pagefile.Name) {
	gone, now := w.pages[name], w.time()
	if gone == nil {
		return // while this machine slept, another one removed it
	}
	delete(w.pages, name)
	if name.Key.String() == w.removes {
		return // nobody can take a request back that is on its way
	}
	known := gone.known(now)
	if now.Sub(known) > inUse {
		return
	}
	for _, stays := range w.pages {
		if age := now.Sub(stays.used); age > old {
			w.fail("a page used %v ago went, and one used %v ago stays", now.Sub(known), age)
			return
		}
	}
}

// measure notes the bytes of all pages.
func (w *world) measure() (bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.objects {
		if len(o.content) == worldPage {
			bytes += worldPage
		}
	}
	w.highest = max(w.highest, bytes)
	return bytes
}

// put stores a new page, if there is room, or a collection makes some.
func (m *machine) put() {
	m.w.made++
	name := pagefile.Name{Fingerprint: tiertest.Fingerprint, Class: pagefile.ClassPage}
	binary.BigEndian.PutUint32(name.Key[4:], m.w.made)
	used := m.tier.now().Add(time.Duration(m.w.made)) // no two are equal
	r, err := m.book.Reserve(ctx, worldPage)
	if err != nil {
		m.collect(room.Demand{Room: worldPage, Before: used})
		r, err = m.book.Reserve(ctx, worldPage)
	}
	if errors.Is(err, tier.ErrNoSpace) || errors.Is(err, ledgers.ErrNotCounted) {
		return
	}
	if err == nil {
		err = m.store(name, r, used)
	}
	if err != nil {
		m.w.fail("a page is not stored: %v", err)
		return
	}
	m.w.pages[name] = &truth{m.w.time(), []writtenUse{{m.w.time(), m.w.time()}}}
	m.w.measure()
}

func (m *machine) store(name pagefile.Name, r *ledgers.Room, used time.Time) error {
	defer r.Cancel()
	up, err := m.tier.Create(ctx, name)
	if err != nil {
		return err
	}
	defer up.Abort()
	if err := up.Write(ctx, make([]byte, worldPage)); err != nil {
		return err
	}
	return m.files.Commit(ctx, up, r, used)
}

// collect does so unless another machine sleeps while it collects, for which a real one would wait.
func (m *machine) collect(want room.Demand) {
	if _, free, err := m.tier.lockFree(ctx); err != nil || !free {
		return
	}
	switch err := m.room.Collect(ctx, want); {
	case err == nil, errors.Is(err, room.ErrExhausted), errors.Is(err, ledgers.ErrNotCounted), errors.Is(err, tier.ErrLocked):
	default:
		m.w.fail("a collection fails: %v", err)
	}
}

// use looks a page up and notes its use.
func (m *machine) use(name pagefile.Name) {
	infos, err := m.tier.Find(ctx, []pagefile.Name{name}, false)
	if err == nil && !infos[0].Found() && m.w.sleeper != nil {
		return // the one that sleeps has just removed it
	}
	if err != nil || !infos[0].Found() {
		m.w.fail("a page that nobody removed is missing: %v", err)
		return
	}
	if !m.tier.Note(name, m.tier.now()) {
		m.w.fail("a use is not noted")
	}
	m.noted[name] = m.w.time()
	m.w.pages[name].used = m.w.time()
}

// write writes the uses of a machine.
func (m *machine) write() {
	m.tier.writeUses(ctx)
	for name, used := range m.noted {
		if p := m.w.pages[name]; p != nil {
			p.written = append(p.written, writtenUse{used, m.w.time()})
		}
	}
	clear(m.noted)
}

// step is something that happens.
func (w *world) step(t *rapid.T) {
	m := rapid.SampledFrom(w.machines).Draw(t, "machine")
	if m == w.sleeper {
		return
	}
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1, 2:
		for range rapid.IntRange(1, 20).Draw(t, "pages") {
			w.pass(time.Second)
			m.put()
		}
	case 3, 4, 5, 6:
		for range min(len(w.pages), rapid.IntRange(1, 20).Draw(t, "uses")) {
			w.pass(time.Second)
			m.use(w.pick(t))
		}
		w.pass(rapid.SampledFrom([]time.Duration{0, usesEvery}).Draw(t, "until written"))
		m.write()
	case 7:
		m.collect(room.Demand{})
	default:
		w.pass(time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute)
	}
}

// pick picks a page by its number.
func (w *world) pick(t *rapid.T) pagefile.Name {
	name := pagefile.Name{Fingerprint: tiertest.Fingerprint, Class: pagefile.ClassPage}
	binary.BigEndian.PutUint32(name.Key[4:], rapid.Uint32Range(1, w.made).Draw(t, "page"))
	for w.pages[name] == nil {
		n := binary.BigEndian.Uint32(name.Key[4:])%w.made + 1
		binary.BigEndian.PutUint32(name.Key[4:], n)
	}
	return name
}

// sleep lets the machine that collects next sleep at one of its next requests, while others go on.
func (w *world) sleep(t *rapid.T) {
	var after atomic.Int32 // requests, of which some run at the same time
	after.Store(rapid.Int32Range(1, 40).Draw(t, "sleeps after"))
	w.sleeper = rapid.SampledFrom(w.machines).Draw(t, "sleeper")
	w.before = func(r *http.Request) {
		if list := r.URL.Query().Get("prefix"); r.Method != http.MethodDelete && list == "" || after.Add(-1) != 0 {
			return
		}
		w.removes = path.Base(r.URL.Path)
		for range rapid.IntRange(1, 8).Draw(t, "steps meanwhile") {
			w.step(t)
		}
	}
	w.sleeper.collect(room.Demand{Room: worldPage, Before: w.time().Add(time.Hour)})
	w.before, w.sleeper, w.removes = nil, nil, ""
}

// TestRoomHistories: whatever order machines with wrong clocks put, use and collect in, and if one sleeps while it
// collects, no page in use goes while one that nobody used for long stays, nothing fails, and the budget holds. There
// are more histories with KVTIER_LONG=1.
func TestRoomHistories(t *testing.T) {
	if os.Getenv("KVTIER_LONG") == "" {
		before := flag.Lookup("rapid.checks").Value.String()
		require.NoError(t, flag.Set("rapid.checks", "15"))
		defer func() { require.NoError(t, flag.Set("rapid.checks", before)) }()
	}
	rapid.Check(t, func(t *rapid.T) {
		skew := rapid.IntRange(-int(skewMost/time.Minute), int(skewMost/time.Minute))
		var skews []time.Duration
		for range 3 {
			skews = append(skews, time.Duration(skew.Draw(t, "skew"))*time.Minute)
		}
		w := newWorld(skews...)
		for range worldBudget / worldPage {
			w.pass(time.Second)
			w.machines[0].put()
		}
		for range rapid.IntRange(5, 30).Draw(t, "length") {
			if rapid.IntRange(0, 3).Draw(t, "sleep") == 0 {
				w.sleep(t)
			} else {
				w.step(t)
			}
		}
		w.pass(2 * lockLife)
		for _, m := range w.machines {
			m.collect(room.Demand{})
			require.NoError(t, m.book.GiveBack(ctx))
		}
		require.Empty(t, w.wrong)
		require.LessOrEqual(t, w.highest, int64(worldBudget*105/100))
		require.GreaterOrEqual(t, w.measure(), int64(worldBudget/2), "nothing goes that need not, but what two remove for each other")
	})
}

var ctx = context.Background()
