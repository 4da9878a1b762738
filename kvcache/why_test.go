package kvcache

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// asked returns the miss of the last prompt, when it is explained.
func (r *fakeRunner) why() *telemetry.Miss {
	r.tiered.why.Wait(time.Minute)
	return r.last().Miss
}

// requireMiss requires the cause of the last prompt's miss, and its position.
func (r *fakeRunner) requireMiss(cause telemetry.Cause, at int) *telemetry.Miss {
	r.t.Helper()
	m := r.why()
	require.NotNil(r.t, m)
	require.Equal(r.t, cause, m.Cause, "%+v", m)
	require.Equal(r.t, at, m.At, "%+v", m)
	return m
}

// newAskedRunner returns a runner that explains misses, on the store of a directory.
func newAskedRunner(t *testing.T, root string, edit ...func(*diskstore.Options)) *fakeRunner {
	return newFakeRunner(t, newDiskStore(t, root, edit...), 2, 128, Options{Recents: why.NewRecents()})
}

// ended ends a runner, as when its model is unloaded.
func (r *fakeRunner) ended() { r.tiered.Close() }

// edited returns a text with another token at a position.
func edited(text []int32, at int) []int32 {
	text = slices.Clone(text)
	text[at] = 7
	return text
}

func TestWhyNeverSeenAndDiffers(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	text := tokenRange(1, 60)
	r.run(r.slots[0], text, nil, true)
	require.Equal(t, "the first prompt of this process", r.requireMiss(telemetry.CauseNeverSeen, 0).Detail)
	r.flush()
	r.run(r.slots[1], text, nil, true)
	require.Nil(t, r.why(), "all but the last token came from the store")
	r.run(r.slots[1], edited(text, 20), nil, true)
	m := r.requireMiss(telemetry.CauseDiffers, 20)
	require.Equal(t, 12, m.Words.Begin)
	require.Equal(t, text[12:], m.Words.Was)
	require.EqualValues(t, 7, m.Words.Is[8])
	r.run(r.slots[0], slices.Concat(text, tokenRange(2, 20)), tokenRange(3, 5), true)
	require.Equal(t, "new text behind a prompt that is known", r.requireMiss(telemetry.CauseNeverSeen, 60).Detail)
	r.run(r.slots[0], slices.Concat(text, tokenRange(2, 20), tokenRange(3, 5), tokenRange(4, 9)), nil, true)
	require.Equal(t, "new text behind a prompt that is known", r.requireMiss(telemetry.CauseNeverSeen, 85).Detail, "the answer is known as well")
	r.run(r.slots[1], tokenRange(9, 40), nil, true)
	require.Empty(t, r.requireMiss(telemetry.CauseNeverSeen, 0).Detail)
	totals, _ := r.meter.Read()
	require.Equal(t, 4.0, totals[`ollama_kv_misses_total{cause="never_seen"}`])
	require.Equal(t, 40.0, totals[`ollama_kv_missed_tokens_total{cause="token_differs"}`])
}

// After a restart the store's text shows the difference.
func TestWhyDiffersFromStoredText(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := tokenRange(1, 60)
	r := newAskedRunner(t, root)
	r.run(r.slots[0], text, nil, true)
	r.ended()
	r = newAskedRunner(t, root)
	r.run(r.slots[0], edited(text, 20), nil, true)
	require.Nil(t, r.requireMiss(telemetry.CauseDiffers, 20).Words)
}

func TestWhyEvicted(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text, short := tokenRange(1, 60), tokenRange(2, 5)
	r := newAskedRunner(t, root)
	r.run(r.slots[0], text, nil, true)
	r.save(r.slots[1], short)
	remove := func() {
		opened, err := diskstore.OpenRoot(t.Context(), diskstore.RootOptions{Local: diskstore.TierConfig{Root: root}})
		require.NoError(t, err)
		_, err = opened.GC(t.Context(), diskstore.GCOptions{Fingerprints: func(diskstore.FingerprintUsage) bool { return true }})
		require.NoError(t, err)
		require.NoError(t, opened.Close())
	}
	remove()
	time := time.Now()
	r.run(r.slots[1], slices.Concat(text[:50], tokenRange(3, 20)), nil, true)
	m := r.requireMiss(telemetry.CauseEvicted, 0)
	require.Equal(t, "local", m.From)
	require.Equal(t, "it was removed by command", m.Detail)
	require.WithinDuration(t, time, m.When, 10*1e9)
	r.flush()
	remove()
	r.ended()
	r = newAskedRunner(t, root)
	r.run(r.slots[0], text, nil, true)
	r.requireMiss(telemetry.CauseEvicted, 0)
	r.run(r.slots[1], slices.Concat(short, tokenRange(3, 2)), nil, true)
	r.requireMiss(telemetry.CauseEvicted, 0) // the tail of a short prompt
	r.run(r.slots[1], tokenRange(7, 30), nil, true)
	r.requireMiss(telemetry.CauseNeverSeen, 0)
}

// Pages that a budget evicts, and the first one that is missing.
func TestWhyEvictedByABudget(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"), func(o *diskstore.Options) { o.Local.BudgetBytes = 80 << 10 })
	text := tokenRange(1, 60)
	r.run(r.slots[0], text, nil, true)
	for i := range 8 {
		r.save(r.slots[1], tokenRange(10+i, 60))
	}
	r.save(r.slots[0], tokenRange(30, 60))
	r.run(r.slots[1], text, nil, true)
	m := r.why()
	require.Equal(t, telemetry.CauseEvicted, m.Cause)
	require.Equal(t, r.last().Tokens-r.last().Computed, m.At)
	require.Equal(t, "room was needed", m.Detail)
}

func TestWhyDamaged(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := tokenRange(1, 60)
	r := newAskedRunner(t, root)
	r.save(r.slots[0], text)
	damage(t, root, r.tiered.why.PageKeys(why.Text{Tokens: text}, 16)[0])
	r.run(r.slots[1], text, nil, true)
	require.Contains(t, r.requireMiss(telemetry.CauseDamaged, 16).Detail, "59 tokens were found")
	r.ended()

	// Another process has set a page aside.
	layoutOf := r.tiered.caches.layout
	r = newAskedRunner(t, root)
	key := r.tiered.why.PageKeys(why.Text{Tokens: text}, 24)[0]
	damage(t, root, key)
	other := newDiskStore(t, root)
	for _, ref := range other.Find(t.Context(), diskstore.Prompt{Tokens: text}).Exact {
		layout, err := layoutOf(ref.Stored, func(int) bool { return true })
		require.NoError(t, err)
		_ = other.Read(t.Context(), ref, text[ref.Start:int(ref.Start)+ref.Tokens], layout, diskstore.Into{Rows: make([]byte, layout.Size())})
	}
	require.NoError(t, other.Close())
	r.run(r.slots[1], text, nil, true)
	r.requireMiss(telemetry.CauseDamaged, 24)
}

// damage flips a bit of a page's file.
func damage(t *testing.T, root string, key pagefile.Key) {
	paths, err := filepath.Glob(filepath.Join(root, "v1", "*", "*", key.String()+".kvp"))
	require.NoError(t, err)
	require.Len(t, paths, 1)
	info, err := os.Stat(paths[0])
	require.NoError(t, err)
	data, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(paths[0], data, 0o600))
	require.NoError(t, os.Chtimes(paths[0], info.ModTime(), info.ModTime()))
}

func TestWhyQuicker(t *testing.T) {
	store := newStuckStore(t)
	r := newFakeRunner(t, store, 1, 128, Options{Recents: why.NewRecents()})
	prompt := r.decided()
	store.stick(0, 1, 2, 3, 4)
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	r.run(r.slots[0], prompt, nil, true)
	require.Equal(t, "40 tokens were found, those not used in local", r.requireMiss(telemetry.CauseQuicker, 0).Detail)
}

func TestWhyTheCacheHadNoRoom(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 64, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.save(r.slots[0], text)
	r.cache.cells = r.cache.cells[:70] // the first slot has 60
	r.load(r.slots[1], text, true)
	r.mu.Lock()
	r.tiered.EndSequence(1)
	r.mu.Unlock()
	require.Contains(t, r.requireMiss(telemetry.CauseQuicker, 0).Detail, "no room")
}

// The pages moved to a tier that has gone since.
func TestWhyTierDown(t *testing.T) {
	folder := t.TempDir()
	far := filepath.Join(folder, "far")
	text := tokenRange(1, 60)
	r := newAskedRunner(t, far)
	r.run(r.slots[0], text, nil, true)
	r.ended()
	remote := func(o *diskstore.Options) { o.Remote.Root = far }
	inj := vfs.Inject(vfs.OS)
	r = newAskedRunner(t, filepath.Join(folder, "near"), remote, func(o *diskstore.Options) { o.FS = inj })
	inj.Add(vfs.Rule{Path: regexp.MustCompile(regexp.QuoteMeta(far)), Err: syscall.EIO})
	r.run(r.slots[0], text[:40], nil, true)
	require.Equal(t, "remote; whether it has the text is not known", r.requireMiss(telemetry.CauseTierDown, 0).Detail)
	r.run(r.slots[0], text, nil, true)
	require.Equal(t, "new text behind a prompt that is known", r.requireMiss(telemetry.CauseNeverSeen, 40).Detail)
}

// A page that is found and cannot be read, because its tier fails.
func TestWhyATierFailsWhileItIsRead(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.save(r.slots[0], text)
	store.readErr = map[int]error{2: tier.ErrTierTimeout}
	r.run(r.slots[1], text, nil, true)
	r.requireMiss(telemetry.CauseTierDown, 16)
	store.readErr = map[int]error{1: syscall.EIO}
	r.run(r.slots[1], tokenRange(2, 9), nil, true)
	r.run(r.slots[1], text, nil, true)
	r.requireMiss(telemetry.CauseDamaged, 8)
}

func TestWhyPrivate(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	system, secret := tokenRange(1, 24), tokenRange(privateBegin, 30)
	r.run(r.slots[0], system, nil, true)
	r.run(r.slots[0], slices.Concat(system, secret), tokenRange(privateBegin+1, 4), false)
	r.requireMiss(telemetry.CauseNeverSeen, 24)
	r.flush()
	r.run(r.slots[1], slices.Concat(system, secret[:20], tokenRange(3, 9)), nil, true)
	require.Nil(t, r.requireMiss(telemetry.CausePrivate, 24).Words)
	r.run(r.slots[1], slices.Concat(system, tokenRange(4, 20)), nil, true)
	r.requireMiss(telemetry.CauseDiffers, 24)
}

// No token of a private request is in any report, of its own or of others, nor in a file that is
// not a page.
func TestWhyTellsNothingPrivate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	r := newAskedRunner(t, root)
	system, secret := tokenRange(1, 24), make([]int32, 40)
	for i := range secret {
		secret[i] = 123456700 + int32(i)
	}
	for i := range 4 {
		r.run(r.slots[0], slices.Concat(system, tokenRange(50+i, 1), secret), secret[:3], false)
		require.NotNil(t, r.why())
		require.Nil(t, r.why().Words)
		r.run(r.slots[1], slices.Concat(system, tokenRange(50+i, 1), tokenRange(60, 40)), nil, true)
	}
	report := telemetry.Source{Meter: r.meter, Fill: r.tiered.Fill}
	r.why()
	made := report.Report()
	require.NotEmpty(t, made.Busters, "of the other slot's prompts")
	text, err := json.Marshal(made)
	require.NoError(t, err)
	require.NotContains(t, string(text), "1234567")
	r.ended()
	requireNoPage := func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".kvp" {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NotContains(t, string(data), string([]byte{0x3c, 0xcd, 0x5b, 0x07}), path) // 123456700
		}
		return err
	}
	require.NoError(t, filepath.WalkDir(root, requireNoPage))
}

func TestWhyStillBeingWritten(t *testing.T) {
	store := newMemStore(t)
	store.hold = make(chan struct{})
	r := newFakeRunner(t, store, 2, 128, Options{Recents: why.NewRecents()})
	r.tiered.store.patience.queue = time.Millisecond
	text := tokenRange(1, 60)
	r.run(r.slots[0], text, nil, true)
	r.run(r.slots[1], text, nil, true)
	r.requireMiss(telemetry.CauseWriting, 0)
	close(store.hold)
}

// Another request computes the text, or has it in its slot.
func TestWhyAnotherRequestHasIt(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	text := tokenRange(1, 60)
	r.load(r.slots[0], text, true)
	r.begin(r.slots[1], text, true)
	require.Equal(t, "another request computes it", r.requireMiss(telemetry.CauseWriting, 0).Detail)
	r.finish(r.slots[0])
	r.finish(r.slots[1])

	r = newFakeRunner(t, newDiskStore(t, filepath.Join(t.TempDir(), "pages")), 2, 128, Options{Recents: why.NewRecents(), TailDelay: time.Hour})
	r.run(r.slots[0], text[:20], nil, true)
	require.NoError(t, r.tiered.queue.wait(t.Context()))
	r.run(r.slots[1], slices.Concat(text[:20], tokenRange(3, 20)), nil, true)
	require.Equal(t, "it waits in the slot of another request", r.requireMiss(telemetry.CauseWriting, 16).Detail)
}

func TestWhyAnotherImage(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 128, Options{Media: identify, Recents: why.NewRecents()})
	const begin, end, n = 13, 31, 60
	r.runInputs(r.slots[0], withImage(n, begin, end, 1))
	r.flush()
	r.runInputs(r.slots[1], withImage(n, begin, end, 2))
	r.requireMiss(telemetry.CauseImage, begin+1)
	r.run(r.slots[1], tokenRange(2, 9), nil, true) // the fake runner looks at tokens alone
	r.runInputs(r.slots[1], withImage(n, begin, end, 11))
	require.Contains(t, r.requireMiss(telemetry.CauseImage, begin).Detail, "no identity")
}

// Text that was computed in a slot that a shift had broken is not stored.
func TestWhyBrokenByAShift(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	text := tokenRange(1, 60)
	r.begin(r.slots[0], text, true)
	r.shift(r.slots[0], 8, 24)
	r.finish(r.slots[0])
	// The next turn goes on in the slot, as a client does that drops old messages as well.
	next := slices.Concat(text[:8], text[32:], tokenRange(2, 20))
	r.run(r.slots[0], next, nil, true)
	r.requireMiss(telemetry.CauseNeverSeen, 36)
	r.flush()
	r.run(r.slots[1], next, nil, true)
	r.requireMiss(telemetry.CauseShift, 8)
	r.run(r.slots[1], text, nil, true)
	require.Nil(t, r.why(), "text before the shift was stored")
}

// So is text behind a run that was reused at another position.
func TestWhyBehindTextThatMoved(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 256, Options{Recents: why.NewRecents(), Runs: runs.New(8, 1<<20)})
	history := tokenRange(1, 100)
	r.save(r.slots[0], history)
	moved := slices.Concat(history[:8], history[48:], tokenRange(2, 20))
	r.save(r.slots[0], moved)
	r.tiered.restorer.runs = nil
	r.run(r.slots[1], moved, nil, true)
	require.Equal(t, "text was reused at another position", r.requireMiss(telemetry.CauseShift, 8).Detail)
}

// Text that was computed and could not be stored.
func TestWhyGivenUp(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"), func(o *diskstore.Options) { o.WritePerDay = 1 })
	r.flush() // files are counted
	text := tokenRange(1, 60)
	r.save(r.slots[0], text)
	r.run(r.slots[1], text, nil, true)
	m := r.requireMiss(telemetry.CauseEvicted, 0)
	require.Equal(t, telemetry.PlaceSlot, m.From)
	require.Equal(t, "it was never stored: "+givenCap, m.Detail)
}

// The same text is stored under another identity.
func TestWhyElsewhere(t *testing.T) {
	ours := map[string]string{"weights": "a", "adapters": "", "cache_type": "f16", "engine": "e", "numerics": "n", "namespace": "us", "page_tokens": "8"}
	for field, test := range map[string]struct {
		cause  telemetry.Cause
		detail string
	}{
		"weights":     {telemetry.CauseWeights, "56 tokens are stored with another weights"},
		"adapters":    {telemetry.CauseWeights, "56 tokens are stored with another adapters"},
		"cache_type":  {telemetry.CauseType, "56 tokens are stored with another cache type (q8_0, not f16)"},
		"engine":      {telemetry.CauseBuild, "56 tokens are stored with another engine"},
		"numerics":    {telemetry.CauseBuild, "56 tokens are stored with another numerics"},
		"namespace":   {telemetry.CauseNamespace, "56 tokens are stored with another namespace"},
		"page_tokens": {telemetry.CausePageSize, "48 tokens are stored with another page tokens (16, not 8)"},
	} {
		t.Run(field, func(t *testing.T) {
			root, page := filepath.Join(t.TempDir(), "pages"), 8
			theirs := map[string]string{}
			for k, v := range ours {
				theirs[k] = v
			}
			theirs[field] = "q8_0"
			if field == "page_tokens" {
				theirs[field], page = "16", 16
			}
			text, key := tokenRange(1, 60), pagefile.Key{1, 2}
			store := newDiskStore(t, root, func(o *diskstore.Options) { o.Fingerprint, o.Identity, o.PageTokens = key, theirs, page })
			r := newFakeRunner(t, store, 1, 128, Options{Fingerprint: key, PageTokens: page})
			r.run(r.slots[0], text, nil, true)
			r.ended()
			r = newAskedRunner(t, root, func(o *diskstore.Options) { o.Identity = ours })
			r.run(r.slots[0], text, nil, true)
			m := r.requireMiss(test.cause, 0)
			require.Equal(t, test.detail, m.Detail)
			require.NotContains(t, m.Detail, "us", "no namespace is named")
			require.Nil(t, m.Words)
		})
	}
}

// A state is stored at some positions only: a token that differs behind one is the cause.
func TestWhyAStateEndsEarlier(t *testing.T) {
	store := newMemStore(t)
	r := newHybridRunner(t, store, Options{Recents: why.NewRecents()}).fakeRunner
	text := tokenRange(1, 60)
	r.save(r.slots[0], text)
	r.run(r.slots[0], slices.Concat(text[:44], tokenRange(2, 30)), nil, true)
	m := r.why()
	require.Equal(t, telemetry.CauseDiffers, m.Cause)
	require.Equal(t, 44, m.At)
	require.Contains(t, m.Detail, "state")
}

// The system prompt's clock.
func TestWhyNamesBusters(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	for i := range 3 {
		r.run(r.slots[0], slices.Concat(tokenRange(1, 20), tokenRange(10+i, 2), tokenRange(2, 60)), nil, true)
	}
	r.why()
	made := (&telemetry.Source{Meter: r.meter, Fill: r.tiered.Fill}).Report()
	require.Len(t, made.Busters, 1)
	require.Equal(t, []int{20, 22, 2, 120}, []int{made.Busters[0].Begin, made.Busters[0].End, made.Busters[0].Prompts, made.Busters[0].Lost})
}

// muteStore is a store whose look-ups for causes hang.
type muteStore struct {
	*diskstore.Store
	asked, answer chan struct{}
}

func (s *muteStore) Gone(context.Context, ...pagefile.Key) (diskstore.Tombstone, bool) {
	s.asked <- struct{}{}
	<-s.answer
	return diskstore.Tombstone{}, false
}

// A look-up that hangs costs no request, no restore and no record, and closing does not wait long.
func TestWhyIsAskedBehindRequests(t *testing.T) {
	store := &muteStore{newDiskStore(t, filepath.Join(t.TempDir(), "pages")), make(chan struct{}, 1000), make(chan struct{})}
	r := newFakeRunner(t, store, 2, 128, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.run(r.slots[0], text, nil, true)
	<-store.asked
	for i := range 2 * engine.JobsMax {
		r.run(r.slots[1], tokenRange(2+i%50, 30), nil, true)
	}
	_, before := r.meter.Read()
	require.NotEmpty(t, before, "prompts are recorded without look-ups when too many wait")
	r.run(r.slots[1], text, nil, true)
	r.ended()
	close(store.answer)
	r.tiered.why.Wait(time.Minute)
	_, prompts := r.meter.Read()
	require.EqualValues(t, 2*engine.JobsMax+2, prompts[len(prompts)-1].Seq, "each is recorded once")
}

// Without Options.Recents nothing is kept and nothing runs.
func TestWhyIsOff(t *testing.T) {
	r := newFakeRunner(t, newDiskStore(t, filepath.Join(t.TempDir(), "pages"), func(o *diskstore.Options) { o.WritePerDay = 1 }), 2, 128, Options{})
	r.save(r.slots[0], tokenRange(1, 60))
	require.Nil(t, r.last().Miss)
	require.Empty(t, r.tiered.why.open)
	require.Empty(t, r.tiered.why.given)
	require.Equal(t, new(engine.Queue), &r.tiered.why.Queue, "it has never run")
}

// The memory of pages that were given up is bounded.
func TestWhyGivenIsBounded(t *testing.T) {
	r := newAskedRunner(t, filepath.Join(t.TempDir(), "pages"))
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	for i := range 3 * givenMax {
		r.tiered.why.givenLocked(pagefile.Key{byte(i), byte(i >> 8), 1}, givenRoom)
		r.tiered.why.givenLocked(pagefile.Key{2}, "")
		r.tiered.why.givenLocked(pagefile.Key{2}, givenRoom)
	}
	require.LessOrEqual(t, len(r.tiered.why.given), givenMax)
	require.LessOrEqual(t, len(r.tiered.why.ring), givenMax)
}

var _ engine.History = (*diskstore.Store)(nil)

// TestRowsThatAreNotStoredAreTold: after the first prompt whose rows do not reach the store, one
// line has the cause.
func TestRowsThatAreNotStoredAreTold(t *testing.T) {
	for cause, test := range map[telemetry.Obstacle]struct {
		options Options
		fault   func(*fakeRunner, *memStore)
	}{
		telemetry.ObstacleLayout: {Options{}, func(r *fakeRunner, _ *memStore) { r.tiered.caches.layers++ }},
		telemetry.ObstacleCopy: {Options{}, func(r *fakeRunner, _ *memStore) {
			r.cache.onRead = func() error { return errors.New("no such row") }
		}},
		telemetry.ObstacleSlow: {Options{QueuedBytes: 16 << 10}, func(_ *fakeRunner, store *memStore) { store.hold = make(chan struct{}) }},
	} {
		t.Run(string(cause), func(t *testing.T) {
			var lines strings.Builder
			test.options.Logger = slog.New(slog.NewTextHandler(&lines, nil))
			r, store := newStored(t, newFakeRunner, 1, 256, test.options)
			test.fault(r, store)
			for i := range 5 {
				r.run(r.slots[0], tokenRange(100+i, 200), nil, true)
			}
			var report telemetry.Report
			r.tiered.opts.Unstored.Fill(&report)
			require.NotNil(t, report.Unstored)
			require.Equal(t, cause, report.Unstored.Cause)
			require.Equal(t, 1, strings.Count(lines.String(), "level=WARN"), lines.String())
			require.Contains(t, lines.String(), "cause="+string(cause)+" ")
			if store.hold != nil {
				close(store.hold)
			}
		})
	}
}

// Requests that are not stored on purpose are no reason for a line.
func TestPrivateRowsAreNotTold(t *testing.T) {
	var lines strings.Builder
	r := newFakeRunner(t, newMemStore(t), 1, 256, Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	r.tiered.caches.layers++
	r.run(r.slots[0], tokenRange(1, 100), nil, false)
	require.Empty(t, lines.String())
}
