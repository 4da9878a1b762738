package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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
var quick = Intervals{
	Report: 20 * time.Millisecond, Heartbeat: 100 * time.Millisecond, Last: time.Minute,
	Backoff: 40 * time.Millisecond, Poll: 5 * time.Millisecond, Disk: time.Minute,
}

const (
	promptsTotal  = "ollama_kv_prompts_total"
	restoresTotal = "ollama_kv_restores_total"
)

// soon is the most time that a test waits for a condition.
const soon = time.Minute

// await waits until a condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, soon, time.Millisecond, what)
}

// newRoot makes a private root.
func newRoot(t testing.TB) string {
	root := filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	return root
}

// serving is a collector in this process.
type serving struct {
	end  context.CancelFunc
	done chan error
}

// startServe starts Serve, and ends it with the test.
func startServe(t testing.TB, root string, edit ...func(*Options)) *serving {
	opt := Options{Intervals: quick}
	for _, e := range edit {
		e(&opt)
	}
	ctx, end := context.WithCancel(context.Background())
	s := &serving{end: end, done: make(chan error, 1)}
	go func() { s.done <- Serve(ctx, root, opt) }()
	t.Cleanup(func() { _ = s.stop() })
	return s
}

// stop ends Serve, and returns its error.
func (s *serving) stop() error {
	s.end()
	err := <-s.done
	s.done <- err
	return err
}

// collector starts Serve and waits until it collects.
func collector(t testing.TB, root string, edit ...func(*Options)) *serving {
	serves := make(chan struct{}, 16)
	s := startServe(t, root, append(edit, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })...)
	select {
	case <-serves:
	case err := <-s.done:
		s.done <- err
		t.Fatal("it does not collect:", err)
	}
	return s
}

// testProcess is a process for tests.
func testProcess(pid int) telemetry.Process {
	return telemetry.Process{PID: pid, Start: uint64(pid), Engine: telemetry.EngineOllama}
}

var testStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// testSource is a source with a meter.
func testSource(pid int) *telemetry.Source {
	return &telemetry.Source{
		Process: testProcess(pid), Started: testStart, Meter: new(telemetry.Meter),
		Model: telemetry.Model{Weights: "w", Fingerprint: "f", PageTokens: 256},
	}
}

// pushing is a Push in this process.
type pushing struct {
	end  context.CancelFunc
	done chan struct{}
}

func startPush(t testing.TB, root string, source *telemetry.Source, edit ...func(*Options)) *pushing {
	opt := Options{Intervals: quick}
	for _, e := range edit {
		e(&opt)
	}
	ctx, end := context.WithCancel(context.Background())
	p := &pushing{end: end, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		Push(ctx, root, source, opt)
	}()
	t.Cleanup(p.stop)
	return p
}

// stop ends Push after its last report.
func (p *pushing) stop() {
	p.end()
	<-p.done
}

// total returns the sum of a series over all models.
func total(s telemetry.State, series string) (sum float64) {
	for _, m := range s.Models {
		sum += m.Totals[series]
	}
	return sum
}

// readState reads a root that has a state.
func readState(t testing.TB, root string) telemetry.State {
	t.Helper()
	s, err := Read(context.Background(), root)
	require.NoError(t, err)
	return s
}

// awaitTotal waits until a series has a value.
func awaitTotal(t testing.TB, root, series string, want float64) {
	t.Helper()
	await(t, series, func() bool {
		s, err := Read(context.Background(), root)
		return err == nil && total(s, series) == want
	})
}

// zipped is a report as a file of prompts has it.
func zipped(t testing.TB, r *telemetry.Report) []byte {
	text, err := encode(r)
	require.NoError(t, err)
	var data bytes.Buffer
	z := gzip.NewWriter(&data)
	_, err = z.Write(text)
	require.NoError(t, errors.Join(err, z.Close()))
	return data.Bytes()
}

// unzipped is the content of a file of prompts.
func unzipped(t testing.TB, path string) string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(text)
}

// newPath is the path of a file of a root's telemetry.
func newPath(root, name string) string { return filepath.Join(root, directoryName, name) }

// lineLogger logs into a text.
func lineLogger(to *strings.Builder) *slog.Logger { return slog.New(slog.NewTextHandler(to, nil)) }
