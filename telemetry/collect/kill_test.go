package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// Variables that make the test binary a process that is killed.
const (
	roleEnv = "KVTIER_COLLECT_ROLE"
	rootEnv = "KVTIER_COLLECT_ROOT"
	stepEnv = "KVTIER_COLLECT_STEP"
)

// Roles of such processes.
const (
	roleReader   = "reader" // reads, and so adds processes to the totals, until it is killed
	rolePusher   = "pusher" // counts prompts until its input ends, and prints how many
	roleDoomed   = "doomed" // counts at most doomedMax restores, until it is killed
	roleStranger = "stranger"
	roleFolder   = "folder" // adds processes to the totals, and is killed before one of its steps
)

const doomedMax = 1000

func child(role string) {
	root := os.Getenv(rootEnv)
	switch role {
	case roleReader:
		for fmt.Println("reads"); ; {
			_, _ = Read(context.Background(), root)
		}
	case rolePusher, roleDoomed:
		childPusher(root, role == roleDoomed)
	case roleStranger:
		stranger(root)
	case roleFolder:
		childFolder(root)
	}
}

func childFolder(root string) {
	step, noStep := strconv.Atoi(os.Getenv(stepEnv))
	place, err := newPlace(root)
	if err := errors.Join(noStep, err); err != nil {
		panic(err)
	}
	steps := 0
	fault := vfs.Inject(place.fs)
	fault.Watch(func(vfs.Op, ...string) {
		if steps++; steps == step {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
	})
	place.fs = fault
	fmt.Println(place.fold(), steps)
}

func childPusher(root string, doomed bool) {
	source := &telemetry.Source{
		Process: Self(telemetry.EngineOllama), Started: time.Now(), Meter: new(telemetry.Meter),
		Model: telemetry.Model{Weights: "w", Fingerprint: "f", PageTokens: 256},
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	nudge := make(chan chan<- struct{}, 1)
	place, err := newPlace(root)
	if err != nil {
		panic(err)
	}
	pusher := newPusher(place, source, Options{Nudge: nudge})
	pusher.every = quick
	done := make(chan error, 1)
	go func() { done <- pusher.run(ctx) }()
	fmt.Println("counts")
	counted := 0
	tick := time.NewTicker(time.Millisecond)
	for ctx.Err() == nil {
		counted++
		if doomed {
			if counted <= doomedMax {
				source.Meter.Add(restoresTotal, 1)
			}
		} else {
			source.Meter.Prompt(telemetry.Prompt{At: time.Now(), Tokens: 1, Computed: 1})
		}
		select {
		case nudge <- make(chan struct{}):
		default:
		}
		<-tick.C
	}
	if <-done != nil {
		counted = -1
	}
	fmt.Println(counted)
}

// processes starts and ends children.
type processes struct {
	t    *testing.T
	root string
}

type running struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader
}

// start starts a child, and waits for its first line.
func (p processes) start(role string) *running {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, rootEnv+"="+p.root)
	stdin, err := cmd.StdinPipe()
	require.NoError(p.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())
	r := &running{cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout)}
	p.t.Cleanup(r.kill)
	_, err = r.lines.ReadString('\n')
	require.NoError(p.t, err)
	return r
}

// kill kills a child with SIGKILL.
func (r *running) kill() {
	if r.cmd.ProcessState == nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	}
}

// end lets a pusher end, and returns its count.
func (r *running) end(t *testing.T) int {
	require.NoError(t, r.stdin.Close())
	line, err := r.lines.ReadString('\n')
	require.NoError(t, err)
	n, err := strconv.Atoi(line[:len(line)-1])
	require.NoError(t, err)
	require.NoError(t, r.cmd.Wait())
	require.GreaterOrEqual(t, n, 0, "the last report was not written")
	return n
}

// monotonic reads a root and requires that no total is less than in an earlier read.
type monotonic struct {
	t      *testing.T
	root   string
	since  time.Time
	totals map[string]float64
}

func (m *monotonic) read() telemetry.State {
	s, err := Read(context.Background(), m.root)
	require.NoError(m.t, err)
	if m.totals == nil {
		m.since = s.Since
	}
	require.True(m.t, m.since.Equal(s.Since), "the totals began anew")
	now := make(map[string]float64)
	for _, model := range s.Models {
		for series, value := range model.Totals {
			now[model.Model.Weights+" "+series] = value
		}
	}
	for series, value := range m.totals {
		require.GreaterOrEqual(m.t, now[series], value, series)
	}
	m.totals = now
	return s
}

// TestTotalsNeverFallWhenAnybodyIsKilled: two processes read, others push, and all are killed in a
// random order. Each total is at least as large as in the read before. In the end the counts of processes
// that pushed a last report are in the totals, once, and nobody is said to run.
func TestTotalsNeverFallWhenAnybodyIsKilled(t *testing.T) {
	rounds := 20
	if os.Getenv("KVTIER_LONG") != "" {
		rounds = 600
	}
	p := processes{t, newSite(t).root}
	pushers := []*running{p.start(rolePusher), p.start(rolePusher)}
	doomed := []*running{p.start(roleDoomed), p.start(roleDoomed)}
	await(t, "a state", func() bool { _, err := Read(context.Background(), p.root); return err == nil })
	readers := []*running{p.start(roleReader), p.start(roleReader)}
	m := &monotonic{t: t, root: p.root}
	counted, killed := 0, len(doomed)
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	replace := func(all []*running, role string) {
		i := random.IntN(len(all))
		all[i].kill()
		all[i] = p.start(role)
	}
	for range rounds {
		switch random.IntN(4) {
		case 0:
			replace(readers, roleReader)
		case 1:
			replace(doomed, roleDoomed)
			killed++
		case 2:
			i := random.IntN(len(pushers))
			counted += pushers[i].end(t)
			pushers[i] = p.start(rolePusher)
		case 3: // somebody reports again
			before := total(m.read(), promptsTotal)
			await(t, "a report", func() bool { return total(m.read(), promptsTotal) > before })
		}
		m.read()
	}
	for _, pusher := range pushers {
		counted += pusher.end(t)
	}
	require.Equal(t, float64(counted), total(m.read(), promptsTotal))
	for _, r := range append(readers, doomed...) {
		r.kill()
	}
	s := m.read()
	require.Empty(t, s.Processes, "the system gives their locks up, so they are not waited for")
	require.Equal(t, float64(counted), total(s, promptsTotal))
	require.Positive(t, total(s, restoresTotal))
	require.LessOrEqual(t, total(s, restoresTotal), float64(killed*doomedMax))
}

// TestTheFolderIsKilledAtEachStep: before, meanwhile and afterwards, readers see each process once.
func TestTheFolderIsKilledAtEachStep(t *testing.T) {
	s := newSite(t)
	want := 0.0
	killed := 0
	for step := 1; ; step++ {
		for pid := range 2 {
			p := s.process(pid + 1)
			p.count(1)
			p.end()
			want++
			if pid == 0 { // one that ends while it writes its words
				require.NoError(t, os.WriteFile(s.path(p.name+wordsEnd+tmpEnd), nil, 0o600))
			}
		}
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), roleEnv+"="+roleFolder, rootEnv+"="+s.root, stepEnv+"="+strconv.Itoa(step))
		out, err := cmd.Output()
		require.Equal(t, want, total(s.look(), promptsTotal), "step %d", step)
		if err == nil {
			require.True(t, strings.HasPrefix(string(out), "<nil>"), string(out))
			break
		}
		killed++
		if step%2 == 0 { // the next one finds the files of several
			require.NoError(t, s.fold())
			require.Equal(t, want, total(s.look(), promptsTotal), "step %d", step)
			require.Equal(t, settled, s.names(), "step %d", step)
		}
	}
	require.Equal(t, settled, s.names())
	require.Greater(t, killed, 20)
}
