package llamae2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestKills kills the front, the daemon or the engine at a random moment, while some clients
// talk and others leave. After each kill the answers are those of a server that was never
// killed, and no page is damaged.
func TestKills(t *testing.T) {
	rounds := 6
	if os.Getenv("KVTIER_LONG") != "" {
		rounds = 100
	}
	model := aModel(t, testmodel.Shape{Arch: "llama"})
	stock := start(t, llamatest.Options{Model: model, Args: []string{"-c", "2048", "-np", "1"}})
	var prompts [][]int32
	var want []answer
	for seed := range 4 {
		prompts = append(prompts, someTokens(seed, 300+100*seed))
		want = append(want, stock.complete(prompts[seed], 8))
	}
	stock.Kill()
	rng := rand.New(rand.NewPCG(1, 1))
	root := filepath.Join(t.TempDir(), "pages")
	restored := 0
	for round := range rounds {
		s := start(t, llamatest.Options{Model: model, Root: root, Args: []string{"-c", "4096", "-np", "2"}})
		var clients sync.WaitGroup
		heard := make(chan struct{}, 1<<12) // one element for each piece of an answer
		for range 3 {
			clients.Add(1)
			go func(first int, patience time.Duration) {
				defer clients.Done()
				for i := range 3 {
					s.leave(prompts[(first+i)%len(prompts)], patience, heard)
				}
			}(rng.IntN(4), time.Duration(rng.IntN(400))*time.Millisecond)
		}
		victims, err := s.Processes()
		require.NoError(t, err)
		require.Len(t, victims, 3, "front, daemon, engine")
		left := make(chan struct{})
		go func() {
			defer close(left)
			clients.Wait()
		}()
		for range rng.IntN(60) { // the kill comes after so many pieces, or when all clients have left
			select {
			case <-heard:
			case <-left:
			}
		}
		_ = unix.Kill(victims[rng.IntN(3)], unix.SIGKILL)
		<-left
		s.Kill()
		gone(t, victims[1:])

		s = start(t, llamatest.Options{Model: model, Root: root, Args: []string{"-c", "2048", "-np", "1"}})
		at := round % len(prompts)
		got := s.complete(prompts[at], 8)
		restored += got.Timings.Cached
		requireFirst(t, want[at], got)
		s.Kill()
		requireClean(t, root)
	}
	require.Positive(t, restored)
	t.Logf("%d kills, %d tokens restored", rounds, restored)
}

// requireFirst requires about the same first token: the batches in which rows were computed
// beside rows of other slots, and the order of cells, change the rounding.
func requireFirst(t testing.TB, want, got answer) {
	t.Helper()
	require.Equal(t, want.Tokens[0], got.Tokens[0])
	require.InDelta(t, want.Probabilities[0].Logprob, got.Probabilities[0].Logprob, 0.05)
}

// leave asks for an answer and goes away after a while. It tells of each piece of the answer.
func (s *server) leave(prompt []int32, patience time.Duration, heard chan<- struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body, err := s.Post(ctx, "/completion", map[string]any{"prompt": prompt, "n_predict": 50, "temperature": 0, "stream": true})
	if err != nil {
		return
	}
	defer body.Close()
	for buf := make([]byte, 1<<16); err == nil; {
		_, err = body.Read(buf)
		select {
		case heard <- struct{}{}:
		default:
		}
	}
}

// gone waits until processes have ended.
func gone(t testing.TB, pids []int) {
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		}
		require.NoError(t, err)
		_ = unix.Close(fd)
		stat, err := proc.Read(pid)
		require.True(t, err != nil || stat.Ended(), "process %d stays behind", pid)
	}
}

// requireClean requires that no page below a root is damaged.
func requireClean(t testing.TB, root string) {
	var found []string
	r := inspect.Roots{Local: dir.New(vfs.OS, root, dir.Options{})}
	checks, err := r.Check(t.Context(), inspect.CheckOptions{Found: func(f inspect.Finding) { found = append(found, fmt.Sprint(f)) }})
	require.NoError(t, err)
	require.NoError(t, checks[0].Err)
	require.Zero(t, checks[0].Damage, found)
}
