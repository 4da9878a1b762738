package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// runCollector runs kvtier collect until the test calls stop, which returns its exit status.
// lines has its log.
func runCollector(t *testing.T, root string, args ...string) (lines *bufio.Scanner, stop func() int) {
	t.Helper()
	noVariables(t)
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan int, 1)
	go func() {
		h := host{stdout: io.Discard, stderr: writer}
		status <- runIn(ctx, h, append([]string{"collect", "--root", root}, args...))
		writer.Close()
	}()
	stop = func() int {
		cancel()
		go func() { _, _ = io.Copy(io.Discard, reader) }() // the last lines
		return <-status
	}
	t.Cleanup(func() {
		cancel()
		reader.Close()
	})
	return bufio.NewScanner(reader), stop
}

// line returns the first line that a pattern matches, and its first group.
func line(t *testing.T, lines *bufio.Scanner, pattern string) string {
	t.Helper()
	for lines.Scan() {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("no line matches %s", pattern)
	return ""
}

// TestCollectServesMetrics: the address answers with the totals of a process that reports.
func TestCollectServesMetrics(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o700))
	lines, stop := runCollector(t, root, "--metrics", "127.0.0.1:0")
	addr := line(t, lines, `msg="kv tier: listening for metrics" address=(\S+)`)

	reportOnce(t, root)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) string {
		answer, err := client.Get("http://" + addr + path)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, answer.Body.Close())
		require.NoError(t, err)
		return string(body)
	}
	require.Regexp(t, `(?m)^ollama_kv_prompts_total\{.*\} 1$`, get("/metrics"))
	require.Contains(t, get("/"), "<title>")
	require.Contains(t, get("/state.json"), `"live":true`)
	require.Equal(t, 0, stop())
	_, err := client.Get("http://" + addr + "/metrics")
	require.Error(t, err, "the listener ends, too")
}

// TestCollectWaits: without a directory and a report, kvtier collect says why nothing happens.
func TestCollectWaits(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	lines, stop := runCollector(t, root)
	line(t, lines, `waiting to collect: no server has reported yet, or the directory is missing`)
	require.NoDirExists(t, root)
	require.NoError(t, os.Mkdir(root, 0o700))
	reportOnce(t, root)
	line(t, lines, `msg="kvtier: collecting" root=`)
	require.Equal(t, 0, stop())
}

// reportOnce makes the last report of a process.
func reportOnce(t *testing.T, root string) {
	source := &telemetry.Source{Process: collect.Self(telemetry.EngineOllama), Started: time.Now(), Meter: new(telemetry.Meter)}
	source.Meter.Prompt(telemetry.Prompt{Tokens: 7, Computed: 7})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	collect.Push(ctx, root, source, collect.Options{})
}

// TestCollectAsAnotherUser: the server could not read the totals of root.
func TestCollectAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o700))
	require.NoError(t, os.Chown(root, 65534, 65534))
	lines, stop := runCollector(t, root)
	line(t, lines, `^Error: .*or run sudo [^ ]+ collect .*--root `)
	require.Equal(t, 1, stop())
	require.NoDirExists(t, filepath.Join(root, "telemetry"))
}
