package llamatier

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// llama-server drops the number of a slot from some requests, and gives them the free slot that holds most of
// the prompt, or the one unused for longest. So does the table, and a restore makes the slot hold more. Such a
// request is one of which nothing is known until the Tier has seen which slot has a new task. Until then no
// other request begins in a free slot, at most for a while. There is one at a time, from its choice of a slot on.

// search is the search for the slot of such a request.
type search struct {
	turn     *Turn
	tokens   []int32 // of its prompt; nil if they are not known yet
	table    *table
	asker    *asker
	patience *patience
	log      *slog.Logger
	ends     bool // the model goes on only where a sequence ended

	free   map[*slot]uint64 // slots in which no request ran before, and the number of those that had
	alone  bool             // no request of which nothing was known ran before
	passed uint64           // table.passed when this one alone has begun since
	before []Slot           // the engine's slots before; nil if they are not known
	others func()           // lets other requests begin
	over   chan struct{}    // closed when the request is
	done   chan struct{}    // closed when nobody looks any more
	found  bool             // the turn has the slot that runs the request, or has run it; read it after done
}

// searched begins a turn for a request that the caller sends next, and searches for the slot that runs it.
// The caller has table.searching, and leave to pass.
func (t *Tier) searched(ctx context.Context, begin func() (*Turn, error)) (*Turn, error) {
	u, err := begin()
	if err != nil {
		<-t.table.searching
		t.table.leave()
		return nil, err
	}
	l := &search{
		turn: u, tokens: u.request.Tokens, table: t.table, asker: t.asker, patience: &t.patience, log: t.log,
		ends: t.restorer.form.shape.HasEnd(), over: make(chan struct{}), done: make(chan struct{}),
	}
	l.shut()
	if l.ready(ctx); ctx.Err() != nil {
		l.others()
		t.table.leave()
		u.Drop()
		return nil, ctx.Err()
	}
	t.table.beginSearch()
	u.search = l
	go l.seek()
	return u, nil
}

// shut lets no request begin in a free slot until others is called, which also gives table.searching back.
func (l *search) shut() {
	t := l.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isShut = true
	action := t.actLocked()
	l.alone, l.passed = t.unknown == 0, t.passed+1
	l.free = make(map[*slot]uint64)
	for _, s := range t.slots {
		if !s.busy {
			l.free[s] = s.begun
		}
	}
	l.others = sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.isShut = false
		t.actedLocked(action)
		t.serveLocked()
		<-t.searching
	})
}

// ready notes the engine's slots. Requests that have a slot in which they do not run yet could lose it to this
// one, unless the slot of this one holds most of its prompt: ready waits for them, at most for a while.
func (l *search) ready(ctx context.Context) {
	s, late := l.turn.s, time.Now().Add(l.patience.search)
	held := commonPrefix(s.tokens, l.tokens)
	sure := 2*held >= len(l.tokens) && held >= l.table.unfound(len(l.tokens))
	for {
		slots, err := l.asker.slots(ctx)
		if err != nil || len(slots) != len(l.table.slots) {
			return
		}
		if sure || l.table.run(s, slots) || time.Now().After(late) {
			l.before = slots
			return
		}
		select {
		case <-time.After(leaveEvery):
		case <-ctx.Done():
			return
		}
	}
}

// seek looks until the request is found, or over.
func (l *search) seek() {
	defer close(l.done)
	defer l.others()
	began := time.Now()
	for wait := time.Millisecond; !l.look(); wait = min(2*wait, l.patience.look) {
		if time.Since(began) > l.patience.search {
			l.others()
		}
		select {
		case <-l.over:
			l.look()
			return
		case <-time.After(wait):
		}
	}
}

func (l *search) look() bool {
	slots, err := l.asker.slots(context.Background())
	if err == nil && len(slots) == len(l.before) {
		l.found = l.table.find(l, slots)
	}
	return l.found
}

// end ends the search for a request that is over, and reports whether it was found. One that nobody has heard
// to the end may yet begin. A nil search is that of a request whose slot was never in doubt.
func (l *search) end(heard bool) (found bool) {
	if l == nil {
		return true
	}
	if !heard {
		select {
		case <-l.done:
		case <-time.After(l.patience.search):
		}
	}
	close(l.over)
	<-l.done
	return l.found
}

// run reports whether the requests that name their slots run in them, except for one slot.
func (t *table) run(one *slot, slots []Slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(t.slots, func(s *slot) bool {
		return s != one && s.busy && s.cancel != nil && !s.loose && !slots[s.id].Running
	})
}

// beginSearch notes that a request begins, of which nothing is known until it is found.
func (t *table) beginSearch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unknown++
	t.passed++
}

// find looks for the slot of a request that has begun: its own, or another one, to which its turn moves.
// It reports whether the slot is known.
func (t *table) find(l *search, now []Slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !l.alone || t.passed != l.passed || l.turn.s.unknown || l.turn.s.late {
		return false // it may be another request of which nothing is known; one that was refused had a slot, too
	}
	begun := func(s *slot) bool { return now[s.id].Task > l.before[s.id].Task }
	if !begun(l.turn.s) {
		to := t.oldestLocked(func(s *slot) bool {
			requests, free := l.free[s]
			return begun(s) && free && s.begun == requests && !s.busy && !s.acting && !s.unknown && !s.unheard() && !s.mayBegin()
		})
		if to == nil || !t.isShut || l.tokens == nil {
			return false // it has not begun, or nobody can tell
		}
		t.moveLocked(l, to)
	}
	t.unknown--
	t.leaveLocked()
	return true
}

// moveLocked moves a turn to the free slot that the engine has chosen.
func (t *table) moveLocked(l *search, to *slot) {
	u, from := l.turn, l.turn.s
	to.takeLocked(u.request.Tenant)
	to.cancel, to.loose = from.cancel, true
	to.begun++
	u.s, u.held, u.restored = to, to.keeps(l.tokens, l.ends), restored{}
	from.begun++ // nothing goes on with it
	t.giveBackLocked(from)
}
