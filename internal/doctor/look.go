package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// Options say where to look.
type Options struct {
	// Root and Remote are directories of pages that were named; the servers' variables do not
	// count then. Empty: those of the servers, or else those of this program's variables.
	Root, Remote string
	// LocalGB and RemoteGB are their budgets as variables have them, or empty.
	LocalGB, RemoteGB string
	Service           string        // systemd unit; empty for ollama.service
	Limit             time.Duration // of each wait; 0 for LimitDefault
}

// LimitDefault bounds each wait: a disk that sleeps needs some seconds.
const LimitDefault = 10 * time.Second

// Look looks at a machine. It ends soon after its context, and after four times the
// limit at most: some questions need the answers of others.
func Look(ctx context.Context, env Environment, opt Options) Report {
	if opt.Limit <= 0 {
		opt.Limit = LimitDefault
	}
	return gather(ctx, env, opt).judge()
}

// asker asks questions that may hang, side by side.
type asker struct {
	ctx   context.Context
	limit time.Duration
	wg    sync.WaitGroup
	mu    sync.Mutex
	slow  []string // questions without an answer
}

// ask runs a question in a goroutine of its own, and hands its answer over if it comes in
// time. A question uses nothing that others write, because it may be left behind.
func ask[T any](a *asker, name string, question func(context.Context) T, answer func(T)) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		ctx, cancel := context.WithTimeout(a.ctx, a.limit)
		defer cancel()
		v, err := steady.Do(a.ctx, new(steady.Guard), steady.Wait{Most: a.limit + grace, Grace: grace},
			func() (T, error) { return question(ctx), nil }, func(T, error) {})
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil {
			a.slow = append(a.slow, name)
			return
		}
		answer(v)
	}()
}

// grace is the time for which a question may go on after its context: a program that was
// killed has to end.
const grace = 500 * time.Millisecond

// wait returns when all questions are answered or given up.
func (a *asker) wait() {
	a.wg.Wait()
	slices.Sort(a.slow)
}
