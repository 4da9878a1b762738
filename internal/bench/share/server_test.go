package share

import (
	"errors"
	"slices"
	"time"
)

const (
	// lookEvery, patience, limitsMove and waitMost are those of the patched runner: the time between
	// two looks at the segment, how long a prompt waits where nothing runs that could make room, how
	// long it does so where the limit was moved within that time, and how long it waits in any case.
	lookEvery  = 300 * time.Millisecond
	patience   = 10 * time.Second
	limitsMove = time.Minute
	waitMost   = 5 * time.Minute
)

// A slot keeps the cells of its last request, for a request that goes on with them.
type slot struct {
	conversation int
	tokens       int
	runs         []run
	busy         bool
	lastUsed     time.Duration
}

// A job is a request that has a slot.
type job struct {
	request  int
	slot     *slot
	seated   time.Duration
	missing  int // tokens of its prompt that are not computed
	answered int
	credit   float64 // part of the next token of its answer
}

type server struct {
	c        Config
	memory   *memory
	refuses  int // prompts of more tokens; 0: none
	slots    []slot
	queue    []int  // requests without a slot
	waiting  []*job // for room, in the order they came
	running  []*job
	alone    time.Duration // since when nothing runs
	limit    uint64        // at the last look
	moved    time.Duration // when a look found another limit; 0: never
	credit   float64       // part of the next token of a prompt
	gaveWay  int           // times that an answer lost its older half for want of room
	outcomes []Outcome     // of the requests of all servers
	requests []Request
}

// slack is how many cells are kept free of prompts.
func (s *server) slack() int { return len(s.slots) + 1 }

// arrive takes a request.
func (s *server) arrive(i int) {
	if s.refuses > 0 && s.requests[i].Prompt+s.slack() > s.refuses {
		s.outcomes[i].Failed = true
		return
	}
	s.queue = append(s.queue, i)
}

// tick is a moment of work.
func (s *server) tick(now time.Duration) error {
	s.seat(now)
	if len(s.running) > 0 {
		s.alone = now
	}
	if err := s.admitAll(now); err != nil {
		return err
	}
	if err := s.prefill(now); err != nil {
		return err
	}
	return s.decode(now)
}

// seat gives requests slots: that of its conversation, or the one that was used longest ago.
func (s *server) seat(now time.Duration) {
	for len(s.queue) > 0 {
		i := s.queue[0]
		q := s.requests[i]
		var best *slot
		for j := range s.slots {
			t := &s.slots[j]
			switch {
			case t.busy:
			case t.tokens > 0 && t.conversation == q.Conversation:
				best = t
			case best == nil, best.conversation != q.Conversation && t.lastUsed < best.lastUsed:
				best = t
			}
		}
		if best == nil {
			return
		}
		s.queue = s.queue[1:]
		if best.conversation != q.Conversation || len(s.waiting) > 0 {
			s.empty(best) // also one that waits behind another
		}
		best.conversation, best.busy = q.Conversation, true
		s.waiting = append(s.waiting, &job{request: i, slot: best, seated: now})
	}
}

func (s *server) empty(t *slot) {
	s.memory.free(t.runs)
	t.runs, t.tokens = nil, 0
}

// admitAll lets prompts in that have room, in order.
func (s *server) admitAll(now time.Duration) error {
	for len(s.waiting) > 0 {
		j := s.waiting[0]
		q := s.requests[j.request]
		j.missing = q.Prompt - min(j.slot.tokens, q.Prompt-1)
		err := s.makeRoom(s.promised() + j.missing + s.slack())
		switch {
		case err == nil:
			s.running = append(s.running, j)
		case !errors.Is(err, errNoRoom) && !errors.Is(err, errRoomSoon):
			return err
		case now-j.seated > waitMost, len(s.running) == 0 && now-max(s.alone, j.seated) >= s.patienceNow(now):
			s.outcomes[j.request].Failed = true
			j.slot.busy, j.slot.lastUsed = false, now
		default:
			return nil
		}
		s.waiting = s.waiting[1:]
		s.alone = now
	}
	return nil
}

// patienceNow is how long a prompt waits where nothing runs that could make room.
func (s *server) patienceNow(now time.Duration) time.Duration {
	if s.moved > 0 && now-s.moved < limitsMove {
		return limitsMove
	}
	return patience
}

// promised is how many cells running requests will take of their prompts, and for the next token of each.
func (s *server) promised() int {
	n := 0
	for _, j := range s.running {
		n += max(1, j.missing)
	}
	return n
}

// makeRoom makes room for cells, if need be from conversations that nobody waits for.
func (s *server) makeRoom(cells int) error {
	for {
		err := s.memory.room(cells)
		if errors.Is(err, errRoomSoon) && len(s.running) == 0 {
			if err := s.memory.trim(true); err != nil {
				return err
			}
			err = s.memory.room(cells)
		}
		if !errors.Is(err, errNoRoom) || !s.emptyOldest() {
			return err
		}
	}
}

// emptyOldest empties the idle slot that was used longest ago. It reports whether there was one.
func (s *server) emptyOldest() bool {
	var oldest *slot
	for i := range s.slots {
		t := &s.slots[i]
		if !t.busy && t.tokens > 0 && (oldest == nil || t.lastUsed < oldest.lastUsed) {
			oldest = t
		}
	}
	if oldest == nil {
		return false
	}
	s.empty(oldest)
	return true
}

// look obeys the limit of the segment, and gives back memory that nobody uses.
func (s *server) look(now time.Duration) error {
	waiting := 0
	for _, j := range s.waiting {
		waiting += s.requests[j.request].Prompt
	}
	if err := s.memory.poll(s.promised()+s.slack(), waiting, s.spare()); err != nil {
		return err
	}
	stats, err := s.memory.pool.Stats()
	if err != nil {
		return err
	}
	if s.limit != 0 && stats.Limit != s.limit {
		s.moved = now
	}
	s.limit = stats.Limit
	return s.obey()
}

// obey empties conversations that nobody waits for as far as the limit asks, and takes memory from free
// blocks: at once where nothing runs and the limit asks for it.
func (s *server) obey() error {
	for {
		over, err := s.memory.exceeds(true)
		if err != nil {
			return err
		}
		if !over || !s.emptyOldest() {
			break
		}
	}
	over, err := s.memory.exceeds(false)
	if err != nil {
		return err
	}
	return s.memory.trim(over && len(s.running) == 0)
}

// spare is the memory of blocks in which no request has a cell.
func (s *server) spare() uint64 {
	needed := make([]bool, len(s.memory.used))
	for i := range s.slots {
		for _, r := range s.slots[i].runs {
			needed[r.block] = needed[r.block] || s.slots[i].busy
		}
	}
	n := uint64(0)
	for block, committed := range s.memory.committed {
		if committed && !needed[block] {
			n += blockBytes
		}
	}
	return n
}

// Computing: prompts are computed one after the other, at the rate of the server, and each answer at
// a rate of its own.

// prefill computes prompts, in the order they were let in.
func (s *server) prefill(now time.Duration) error {
	s.credit += s.c.Prefill * tick.Seconds()
	for _, j := range s.running {
		n := min(j.missing, int(s.credit))
		if n == 0 {
			continue
		}
		if err := s.add(j, n); err != nil {
			return err
		}
		s.credit -= float64(n)
		if j.missing -= n; j.missing == 0 {
			s.outcomes[j.request].First = now + tick
		}
	}
	s.credit -= float64(int(s.credit)) // of tokens that nobody had
	return nil
}

// decode goes on with the answers.
func (s *server) decode(now time.Duration) error {
	for _, j := range s.running {
		if j.missing > 0 {
			continue
		}
		for j.credit += decodeRate * tick.Seconds(); j.credit >= 1 && !s.done(j); j.credit-- {
			if err := s.answer(j); err != nil {
				return err
			}
		}
		if s.done(j) {
			j.slot.busy, j.slot.lastUsed = false, now
			s.outcomes[j.request].Done = now + tick
		}
	}
	s.running = slices.DeleteFunc(s.running, s.done)
	return nil
}

func (s *server) done(j *job) bool { return j.answered >= s.requests[j.request].Answer }

// answer adds a token to an answer. Where there is no room for it the answer gives up its older half,
// or ends where nothing is left to give.
func (s *server) answer(j *job) error {
	for {
		may, err := s.mayAdd(j)
		if err != nil {
			return err
		}
		if may {
			j.answered++
			return s.add(j, 1)
		}
		s.gaveWay++
		if j.slot.tokens < 2 {
			j.answered = s.requests[j.request].Answer
			return nil
		}
		s.shift(j.slot)
	}
}

// add gives a slot cells.
func (s *server) add(j *job, cells int) error {
	runs, err := s.memory.take(cells)
	j.slot.runs, j.slot.tokens = append(j.slot.runs, runs...), j.slot.tokens+cells
	return err
}

// mayAdd reports whether an answer has room for its next token. The longest gives way before the
// cells run out that are kept free.
func (s *server) mayAdd(j *job) (bool, error) {
	err := s.settled(s.makeRoom, s.promised()+s.slack())
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, errNoRoom) {
		return false, err
	}
	if s.settled(s.memory.room, 1) != nil {
		return false, nil
	}
	return !s.longest(j) && s.settled(s.memory.room, s.promised()) == nil, nil
}

// settled asks for room, and again without the memory of all free blocks: no batch is computed then.
func (s *server) settled(ask func(cells int) error, cells int) error {
	err := ask(cells)
	if errors.Is(err, errRoomSoon) {
		if err := s.memory.trim(true); err != nil {
			return err
		}
		err = ask(cells)
	}
	return err
}

func (s *server) longest(j *job) bool {
	return !slices.ContainsFunc(s.running, func(other *job) bool {
		return other.missing == 0 && other.slot.tokens > j.slot.tokens
	})
}

// shift drops the older half of a slot's tokens, which then are the beginning of no conversation.
func (s *server) shift(t *slot) {
	t.conversation = -1
	drop := t.tokens / 2
	t.tokens -= drop
	for drop > 0 {
		n := min(drop, t.runs[0].cells)
		s.memory.free([]run{{t.runs[0].block, n}})
		drop -= n
		if t.runs[0].cells -= n; t.runs[0].cells == 0 {
			t.runs = t.runs[1:]
		}
	}
}
