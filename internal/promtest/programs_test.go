package promtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program returns the path of prometheus or promtool.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, "build/prometheus/usr/bin", name))
	require.NoError(t, err)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	const missing = "%s is not installed; scripts/deps test unpacks Debian's, elsewhere install Prometheus"
	if os.Getenv("CI") == "true" {
		t.Fatalf(missing, name)
	}
	t.Skipf(missing, name)
	return ""
}

// promtool runs promtool on a text and requires that it finds nothing.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool"), args...)
	cmd.Stdin = bytes.NewBufferString(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %v: %s", args, out)
}

// prometheus is a running Prometheus.
type prometheus struct {
	url string
	log *bytes.Buffer // to be read after its end
}

// startPrometheus runs Prometheus in a folder of its own until the test ends. targets are
// addresses by job.
func startPrometheus(t *testing.T, targets map[string]string) *prometheus {
	t.Helper()
	path := program(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs(alertsFile)
	require.NoError(t, err)
	config := "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: ['" + rules + "']\nscrape_configs:\n"
	for job, address := range targets {
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: ['%s']}]}\n", job, address)
	}
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	if deadline, ok := t.Deadline(); ok { // a test that is cut off leaves no process
		ctx, cancel = context.WithDeadline(t.Context(), deadline.Add(-10*time.Second))
	}
	address := freeAddress(t)
	p := &prometheus{url: "http://" + address, log: new(bytes.Buffer)}
	cmd := exec.CommandContext(ctx, path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--storage.tsdb.retention.time=1h")
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = p.log, p.log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
		http.DefaultClient.CloseIdleConnections()
		if t.Failed() {
			t.Logf("Prometheus: %s", p.log)
		}
	})
	return p
}

// freeAddress is a port that nothing listens on. Prometheus names no port that the system chose.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// series is one result of a query.
type series struct {
	Metric map[string]string
	Value  [2]any // time, and the number as text
}

func (s series) number() string { return fmt.Sprint(s.Value[1]) }

// query runs one query. The error is that of Prometheus, such as of its syntax.
func (p *prometheus) query(ctx context.Context, expr string) ([]series, error) {
	var data struct {
		ResultType string
		Result     json.RawMessage
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	if data.ResultType != "vector" {
		return nil, fmt.Errorf("%s is a %s", expr, data.ResultType)
	}
	var all []series
	return all, json.Unmarshal(data.Result, &all)
}

// get decodes the data of an answer of Prometheus.
func (p *prometheus) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status string
		Error  string
		Data   json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("Prometheus refuses it: %s", answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}
