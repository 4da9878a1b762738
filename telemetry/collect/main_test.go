package collect

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// quick are intervals of tests.
var quick = intervals{report: 20 * time.Millisecond, heartbeat: 100 * time.Millisecond, last: time.Minute, backoff: 40 * time.Millisecond}

const (
	promptsTotal  = "ollama_kv_prompts_total"
	restoresTotal = "ollama_kv_restores_total"
)

// await waits until a condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, time.Millisecond, what)
}

// site is a root whose processes report when a test says so.
type site struct {
	t testing.TB
	*place
	fault *vfs.Injector
	warns *strings.Builder
}

func newSite(t testing.TB) *site {
	root := filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	return siteAt(t, root)
}

// siteAt is a site at a root that may be missing.
func siteAt(t testing.TB, root string) *site {
	place, err := newPlace(root)
	require.NoError(t, err)
	s := &site{t: t, place: place, fault: vfs.Inject(place.fs), warns: new(strings.Builder)}
	place.fs, place.patience, place.log = s.fault, time.Minute, slog.New(slog.NewTextHandler(s.warns, nil))
	return s
}

// process is a process that reports when a test says so.
type process struct {
	*pusher
	site   *site
	pushes bool // by itself, and so ends by itself
}

// process begins one. It has a place of its own, whose log is that of the site.
func (s *site) process(pid int) *process {
	place := *s.place
	p := &process{pusher: newPusher(&place, testSource(pid), Options{}), site: s}
	p.every = quick
	s.t.Cleanup(func() {
		if !p.pushes {
			p.end()
		}
	})
	return p
}

func (p *process) report() { require.NoError(p.site.t, p.try(true)) }

func (p *process) count(n float64) {
	p.source.Meter.Add(promptsTotal, n)
	p.report()
}

// prompt counts a prompt that parts from an earlier one at a token; 0 for none.
func (p *process) prompt(token int32) {
	prompt := telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9}
	if token > 0 {
		prompt.Miss = &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: []int32{token}}}
	}
	p.source.Meter.Prompt(prompt)
}

// words is the content of the file of prompts.
func (p *process) words() string {
	text, err := os.ReadFile(p.path(p.name + wordsEnd))
	require.NoError(p.site.t, err)
	return string(text)
}

// push reports by itself, until stop or the end of the test.
func (p *process) push() (stop func()) {
	p.pushes = true
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.pusher.push(ctx)
	}()
	stop = func() {
		end()
		<-done
	}
	p.site.t.Cleanup(stop)
	return stop
}

// look reads the files as a reader does, and adds nothing to the totals.
func (s *site) look() telemetry.State {
	s.t.Helper()
	t, err := s.tell()
	require.NoError(s.t, err)
	return t.State
}

// read reads a root that has a state.
func (s *site) read() telemetry.State {
	s.t.Helper()
	state, err := Read(context.Background(), s.root)
	require.NoError(s.t, err)
	return state
}

// awaitTotal waits until the prompts have a number.
func (s *site) awaitTotal(want float64) {
	s.t.Helper()
	await(s.t, "prompts", func() bool {
		state, err := Read(context.Background(), s.root)
		return err == nil && total(state, promptsTotal) == want
	})
}

func (s *site) names() (names []string) {
	entries, err := os.ReadDir(s.dir)
	require.NoError(s.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// makeOld makes the report of a process older than orphanAge.
func (s *site) makeOld(name string) {
	old := time.Now().Add(-orphanAge - time.Hour)
	require.NoError(s.t, os.Chtimes(s.path(name+numbersEnd), old, old))
}

// settled are the files of a directory without processes and prompts.
var settled = []string{foldName, totalsName}

var testStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// testSource is a source with a meter.
func testSource(pid int) *telemetry.Source {
	return &telemetry.Source{
		Process: telemetry.Process{PID: pid, Start: uint64(pid), Engine: telemetry.EngineOllama}, Started: testStart,
		Model: telemetry.Model{Weights: "w", Fingerprint: "f", PageTokens: 256}, Meter: new(telemetry.Meter),
	}
}

// wordsSource is a source with two prompts, a private one and another, and a place that changes.
func wordsSource(pid int, namespace string, token int32) *telemetry.Source {
	source := testSource(pid)
	source.Model.Namespace = namespace
	words := &telemetry.Words{Was: []int32{token}, Is: []int32{token}}
	for _, private := range []bool{true, false} {
		source.Meter.Prompt(telemetry.Prompt{At: testStart, Private: private, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: words}})
	}
	source.Fill = func(r *telemetry.Report) { r.Busters = []telemetry.Buster{{Begin: 1, End: 2, Words: words}} }
	return source
}

// total returns the sum of a series over all models.
func total(s telemetry.State, series string) (sum float64) {
	for _, m := range s.Models {
		sum += m.Totals[series]
	}
	return sum
}

// wordsIn counts the Words of a state.
func wordsIn(s telemetry.State) (n int) {
	for _, p := range s.Prompts {
		if p.Miss != nil && p.Miss.Words != nil {
			n++
		}
	}
	for _, p := range s.Processes {
		for _, b := range p.Busters {
			if b.Words != nil {
				n++
			}
		}
	}
	return n
}
