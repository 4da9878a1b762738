package share

import (
	"errors"
	"slices"
	"time"
)

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
		for j.credit += s.c.Decode * tick.Seconds(); j.credit >= 1 && !s.done(j); j.credit-- {
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
