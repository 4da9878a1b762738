package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// run runs a command and those of its batches, and hands their messages to the model. It
// returns the number of messages.
func run(m *model, cmd tea.Cmd) int {
	if cmd == nil {
		return 0
	}
	msg := cmd()
	if batch, ok := msg.(tea.BatchMsg); ok {
		n := 0
		for _, c := range batch {
			n += run(m, c)
		}
		return n
	}
	if msg == nil {
		return 0
	}
	_, next := m.Update(msg)
	return 1 + run(m, next)
}

func press(m *model, key tea.KeyType, runes ...rune) tea.Cmd {
	_, cmd := m.Update(tea.KeyMsg{Type: key, Runes: runes})
	return cmd
}

func TestSeveralServers(t *testing.T) {
	roots := []string{"/a", "/b"}
	m := newModel(context.Background(), Options{
		Roots: func() []string { return roots },
		Read: func(_ context.Context, root string) (telemetry.State, error) {
			if root == "/b" {
				return telemetry.State{}, errors.New("nobody listens")
			}
			s := sampleState()
			s.Root = root
			return s, nil
		},
		Now: func() time.Time { return now },
	})
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	require.Equal(t, 3, run(m, m.look()))
	require.Contains(t, m.View(), "kvtier top 1/2 /a")
	press(m, tea.KeyTab)
	require.Contains(t, m.View(), "kvtier top 2/2 /b")
	require.Contains(t, m.View(), "nobody listens")
	press(m, tea.KeyTab)
	require.Contains(t, m.View(), "kvtier top 1/2 /a")
	press(m, tea.KeyShiftTab)
	require.Contains(t, m.View(), "kvtier top 2/2 /b")

	// A server that comes first does not take the place of the one that is shown, which may go.
	roots = []string{"/0", "/a", "/b"}
	run(m, m.look())
	require.Contains(t, m.View(), "kvtier top 3/3 /b")
	roots = []string{"/a"}
	run(m, m.look())
	require.Contains(t, m.View(), "kvtier top /a")
	require.Equal(t, tea.Quit(), press(m, tea.KeyRunes, 'q')())
	require.Equal(t, tea.Quit(), press(m, tea.KeyCtrlC)())
	require.Nil(t, press(m, tea.KeyRunes, 'x'))
}

// A server that does not answer is asked once, and keys work while it is.
func TestHungServer(t *testing.T) {
	release, asked := make(chan struct{}), make(chan string, 8)
	m := newModel(context.Background(), Options{
		Roots: func() []string { return []string{"/a", "/b"} },
		Read: func(_ context.Context, root string) (telemetry.State, error) {
			asked <- root
			if root == "/a" {
				<-release
			}
			return sampleState(), nil
		},
		Now: func() time.Time { return now },
	})
	m.width, m.height = 80, 24
	m.setRoots([]string{"/a", "/b"})
	batch := m.ask()().(tea.BatchMsg)
	require.Len(t, batch, 2)
	answers := make(chan tea.Msg, 2)
	for _, cmd := range batch {
		go func() { answers <- cmd() }()
	}
	m.Update(<-answers)
	require.Equal(t, []bool{true, false}, []bool{m.servers[0].reading, m.servers[1].reading})
	require.Contains(t, m.View(), "reading")
	press(m, tea.KeyTab)
	require.Contains(t, m.View(), "live")
	again := m.ask()
	m.Update(again()) // the other server alone: a batch of one is its command
	require.False(t, m.servers[1].reading)
	close(release)
	m.Update(<-answers)
	require.True(t, m.servers[0].known)
	require.Len(t, asked, 3)
}

// A restart of the server: its numbers stay, the view says that it waits, and goes on.
func TestRestart(t *testing.T) {
	m := modelOf(sampleState())
	s := m.servers[0]
	require.Contains(t, m.frame(80, 24), "restored 1,204 tok/s")
	s.take(telemetry.State{}, errors.New("connection refused"))
	require.Contains(t, m.frame(80, 24), "waiting for the server")
	require.Contains(t, m.frame(80, 24), "reused 80% of 308,738 tokens")
	require.NotContains(t, m.frame(80, 24), "busy")
	file := later(sampleState(), 2*time.Second)
	file.Live = false
	s.take(file, nil)
	require.Contains(t, m.frame(80, 24), "waiting for the server")
	s.take(later(sampleState(), 4*time.Second), nil)
	require.Contains(t, m.frame(80, 24), "restored - tok/s")
	s.take(later(sampleState(), 5*time.Second), nil)
	require.Contains(t, m.frame(80, 24), "restored 1,204 tok/s")
	require.Contains(t, m.frame(80, 24), "live")
	m.opt.Now = func() time.Time { return now.Add(time.Minute) }
	require.Contains(t, m.frame(80, 24), "no news for 55 s")
}

func TestRates(t *testing.T) {
	var r rates
	_, ok := r.perSecond()
	require.False(t, ok)
	s := sampleState()
	r.add(s)
	r.add(s)
	_, ok = r.perSecond()
	require.False(t, ok, "the same state again")
	for i := range 20 {
		r.add(later(s, time.Duration(i+1)*time.Second))
	}
	require.Len(t, r.samples, samplesMax)
	got, ok := r.perSecond()
	require.True(t, ok)
	require.InDelta(t, 1204, got.restored, 0.01)
	require.InDelta(t, 12*mb, got.written, 1)
	anew := later(s, 21*time.Second)
	anew.Since = now
	r.add(anew)
	_, ok = r.perSecond()
	require.False(t, ok, "totals began anew")
	r.add(s)
	require.Len(t, r.samples, 1, "a clock was set back")
}

func TestRoots(t *testing.T) {
	base := filepath.Join(t.TempDir(), "a[b")
	for _, dir := range []string{"instances/one/telemetry", "instances/two/v1", "instances/other", "sub"} {
		require.NoError(t, os.MkdirAll(filepath.Join(base, dir), 0o700))
	}
	one, two := filepath.Join(base, "instances", "one"), filepath.Join(base, "instances", "two")
	require.Equal(t, []string{one, two}, Roots([]string{base}))
	require.NoError(t, os.Mkdir(filepath.Join(base, "v1"), 0o700))
	require.Equal(t, []string{two, base, one}, Roots([]string{two, base, base}))
	require.Equal(t, []string{"/no/such"}, Roots([]string{"/no/such"}))
	for i := range ServersMax + 10 {
		require.NoError(t, os.MkdirAll(filepath.Join(base, "instances", fmt.Sprintf("n%d", i), "v1"), 0o700))
	}
	require.Len(t, Roots([]string{base}), ServersMax)
}

func TestOnceAndJSON(t *testing.T) {
	opt := Options{
		Roots: func() []string { return []string{"/a", "/b", "/c"} },
		Names: func() show.Name { return func(string, string) string { return "named" } },
		Limit: time.Minute,
		Read: func(ctx context.Context, root string) (telemetry.State, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				return telemetry.State{}, errors.New("no deadline")
			}
			if root == "/b" {
				return telemetry.State{}, errors.New("nobody listens")
			}
			return sampleState(), nil
		},
		Now: func() time.Time { return now },
	}
	var out bytes.Buffer
	err := Once(t.Context(), &out, opt, 80, 24)
	require.EqualError(t, err, "read the state of /b: nobody listens; is a server with OLLAMA_KV_TIERING=1 running there? kvtier doctor says more")
	require.Equal(t, 4, strings.Count(out.String(), "named       "), out.String())
	require.NotContains(t, out.String(), "quit")
	require.Contains(t, out.String(), "kvtier top 3/3 /c")
	require.NotContains(t, out.String(), "\x1b")
	var states []any
	err = JSON(t.Context(), opt, func(v any) error { states = append(states, v); return nil })
	require.ErrorContains(t, err, "read the state of /b")
	require.Len(t, states, 2)
	require.ErrorContains(t, JSON(t.Context(), opt, func(any) error { return errors.New("full") }), "print the state: full")
}
