package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/elastic/balance"
	"github.com/kvtier/kvtier/elastic/segment"
)

// Config is the servers and their load.
type Config struct {
	Servers int
	Prefill float64 // tokens per second
	Bursts  int
	Load    float64 // new tokens of prompts, over those that one server can compute
}

const (
	slotsEach   = 8
	budget      = 32768 // tokens that all servers may hold together
	decodeRate  = 50.   // tokens of one answer per second
	answerLeast = 50
	answerMost  = 300
)

// An Outcome is that of a request. Times count from the beginning.
type Outcome struct {
	First, Done time.Duration // its first token, and its last
	Failed      bool
}

// A Side is the outcome of all requests under one policy.
type Side struct {
	Outcomes []Outcome
	Most     int // tokens whose memory all servers held at a time, at most
	GaveWay  int // times that an answer lost its older half for want of room
	End      time.Duration
}

// A Policy moves limits at a time; nil never does.
type Policy func(now time.Duration, budget int64, ours func(segment.Segment) bool) error

// Balance is the policy of kvtier balance.
func Balance(now time.Duration, budget int64, ours func(segment.Segment) bool) error {
	var failed error
	b := balance.Balancer{
		Budget: budget, Of: ours, Now: func() time.Time { return time.Unix(0, 0).Add(now) },
		Changed: func(_ balance.Change, err error) { failed = errors.Join(failed, err) },
	}
	err := b.Look()
	return errors.Join(failed, err)
}

const (
	tick = 20 * time.Millisecond

	// endless is when a simulation has failed: requests wait for 5 minutes at most.
	endless = 24 * time.Hour
)

// ErrOverBudget: together the servers held more than the budget.
var ErrOverBudget = errors.New("share: the servers hold more memory than the budget")

// runs tells segments of simulations apart.
var runs atomic.Int64

// Failed is the number of requests that failed.
func (s Side) Failed() int {
	n := 0
	for _, o := range s.Outcomes {
		if o.Failed {
			n++
		}
	}
	return n
}

// Completed is the number of requests that were answered.
func (s Side) Completed() int { return len(s.Outcomes) - s.Failed() }

// A simulation is servers that work until all requests have ended.
type simulation struct {
	c        Config
	policy   Policy // nil: none
	segments string // the beginning of their names
	servers  []*server
	requests []Request
	came     int // requests that have come
	side     Side
}

// simulate gives each server its part of the budget: for good, or until a policy moves limits.
func simulate(ctx context.Context, c Config, requests []Request, policy Policy) (_ Side, err error) {
	s := &simulation{
		c: c, policy: policy, segments: fmt.Sprintf("kvtier-share-%d-%d-", os.Getpid(), runs.Add(1)),
		requests: requests, side: Side{Outcomes: make([]Outcome, len(requests))},
	}
	defer func() {
		for _, server := range s.servers {
			err = errors.Join(err, server.memory.close())
		}
	}()
	if err := s.begin(); err != nil {
		return s.side, err
	}
	for now := time.Duration(0); now < endless; now += tick {
		if err := errors.Join(ctx.Err(), s.step(now)); err != nil {
			return s.side, err
		}
		if s.came == len(requests) && s.idle() {
			s.side.End = now
			return s.side, nil
		}
	}
	return s.side, errors.New("share: requests wait for ever")
}

// begin makes servers that have equal parts of the budget.
func (s *simulation) begin() error {
	part := budget / s.c.Servers
	for i := range s.c.Servers {
		m, err := newMemory(fmt.Sprint(s.segments, i), budget, uint64(part)*tokenBytes)
		if err != nil {
			return err
		}
		server := &server{c: s.c, memory: m, slots: make([]slot, slotsEach), outcomes: s.side.Outcomes, requests: s.requests}
		if s.policy == nil {
			server.refuses = part
		}
		s.servers = append(s.servers, server)
	}
	return nil
}

// step is a moment of all servers, and of the policy where it is time for it.
func (s *simulation) step(now time.Duration) error {
	for ; s.came < len(s.requests) && s.requests[s.came].At <= now; s.came++ {
		s.servers[s.requests[s.came].Server].arrive(s.came)
	}
	if err := s.work(now); err != nil {
		return err
	}
	if s.policy == nil || now%balance.Every != 0 {
		return nil
	}
	return s.policy(now, int64(budget)*tokenBytes, func(o segment.Segment) bool { return strings.HasPrefix(o.Name, s.segments) })
}

// work lets all servers work, and look where it is time. Their looks are apart, as those of processes.
func (s *simulation) work(now time.Duration) error {
	held := int64(0)
	s.side.GaveWay = 0
	for i, server := range s.servers {
		apart := time.Duration(i) * lookEvery / time.Duration(len(s.servers))
		if (now+apart)%lookEvery < tick {
			if err := server.look(now); err != nil {
				return err
			}
		}
		if err := server.tick(now); err != nil {
			return err
		}
		n, err := server.memory.held()
		if err != nil {
			return err
		}
		held += n
		s.side.GaveWay += server.gaveWay
	}
	s.side.Most = max(s.side.Most, int(held/tokenBytes))
	if s.side.Most > budget {
		return fmt.Errorf("%w: %d tokens of %d", ErrOverBudget, s.side.Most, budget)
	}
	return nil
}

func (s *simulation) idle() bool {
	for _, server := range s.servers {
		if len(server.queue)+len(server.waiting)+len(server.running) > 0 {
			return false
		}
	}
	return true
}
