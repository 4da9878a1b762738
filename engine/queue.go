package engine

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// JobsMax bounds the jobs of a Queue that wait. Prompts beyond are recorded without look-ups.
const JobsMax = 64

// Queue runs jobs one after another, in a goroutine while there are any. The zero Queue is ready.
type Queue struct {
	mu      sync.Mutex
	jobs    []func()
	running bool
	idle    chan struct{} // closed while the goroutine does not exist; nil before the first

	panicked sync.Once
}

// Submit runs a job after those before it. Submit reports false when too many wait.
func (q *Queue) Submit(job func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) >= JobsMax {
		return false
	}
	q.jobs = append(q.jobs, job)
	if !q.running {
		q.running, q.idle = true, make(chan struct{})
		go q.run()
	}
	return true
}

func (q *Queue) run() {
	for {
		q.mu.Lock()
		if len(q.jobs) == 0 {
			q.running = false
			close(q.idle)
			q.mu.Unlock()
			return
		}
		job := q.jobs[0]
		q.jobs = slices.Delete(q.jobs, 0, 1)
		q.mu.Unlock()
		q.do(job)
	}
}

// do runs a job. A defect in an explanation costs the explanation alone, and not the engine.
func (q *Queue) do(job func()) {
	defer func() {
		if r := recover(); r != nil {
			q.panicked.Do(func() {
				slog.Error("kv tier: a prompt could not be explained, later panics of it are not logged", "panic", r, "stack", string(debug.Stack()))
			})
		}
	}()
	job()
}

// Wait waits until no job is left, at most for some time.
func (q *Queue) Wait(most time.Duration) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle != nil {
		steady.Ended(idle, most)
	}
}
